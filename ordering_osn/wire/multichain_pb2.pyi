# ruff: noqa: ANN003, E501, I001, RUF023, UP007, UP035, UP045
# mypy: ignore-errors
# fmt: off
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VoidReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOID_REASON_UNSPECIFIED: _ClassVar[VoidReason]
    VOID_REASON_MALFORMED: _ClassVar[VoidReason]
    VOID_REASON_WRONG_CHAINS: _ClassVar[VoidReason]
    VOID_REASON_DUPLICATE: _ClassVar[VoidReason]
    VOID_REASON_EXPIRED: _ClassVar[VoidReason]
    VOID_REASON_NO_MARKER: _ClassVar[VoidReason]
    VOID_REASON_STALE: _ClassVar[VoidReason]
    VOID_REASON_AHEAD: _ClassVar[VoidReason]
VOID_REASON_UNSPECIFIED: VoidReason
VOID_REASON_MALFORMED: VoidReason
VOID_REASON_WRONG_CHAINS: VoidReason
VOID_REASON_DUPLICATE: VoidReason
VOID_REASON_EXPIRED: VoidReason
VOID_REASON_NO_MARKER: VoidReason
VOID_REASON_STALE: VoidReason
VOID_REASON_AHEAD: VoidReason

class Bundle(_message.Message):
    __slots__ = ("content", "signature", "envelopes")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    signature: bytes
    envelopes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, content: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., envelopes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BundleContent(_message.Message):
    __slots__ = ("parts", "nonce", "expiry", "submitter")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[BundlePart]
    nonce: bytes
    expiry: int
    submitter: bytes
    def __init__(self, parts: _Optional[_Iterable[_Union[BundlePart, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., expiry: _Optional[int] = ..., submitter: _Optional[bytes] = ...) -> None: ...

class BundlePart(_message.Message):
    __slots__ = ("chain", "sha256")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    chain: str
    sha256: bytes
    def __init__(self, chain: _Optional[str] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("bundle", "config_marker")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_MARKER_FIELD_NUMBER: _ClassVar[int]
    bundle: BundleRecord
    config_marker: ConfigMarker
    def __init__(self, bundle: _Optional[_Union[BundleRecord, _Mapping]] = ..., config_marker: _Optional[_Union[ConfigMarker, _Mapping]] = ...) -> None: ...

class BundleRecord(_message.Message):
    __slots__ = ("bundle", "config_sequences")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    config_sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ..., config_sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class ConfigMarker(_message.Message):
    __slots__ = ("chain", "config_block", "sequence")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    chain: str
    config_block: int
    sequence: int
    def __init__(self, chain: _Optional[str] = ..., config_block: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class KafkaMessage(_message.Message):
    __slots__ = ("regular", "time_to_cut", "connect")
    REGULAR_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_CUT_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    regular: KafkaMessageRegular
    time_to_cut: KafkaMessageTimeToCut
    connect: KafkaMessageConnect
    def __init__(self, regular: _Optional[_Union[KafkaMessageRegular, _Mapping]] = ..., time_to_cut: _Optional[_Union[KafkaMessageTimeToCut, _Mapping]] = ..., connect: _Optional[_Union[KafkaMessageConnect, _Mapping]] = ...) -> None: ...

class KafkaMessageRegular(_message.Message):
    __slots__ = ("payload", "config_seq", "original_offset")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SEQ_FIELD_NUMBER: _ClassVar[int]
    CLASS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    config_seq: int
    original_offset: int
    def __init__(self, payload: _Optional[bytes] = ..., config_seq: _Optional[int] = ..., original_offset: _Optional[int] = ..., **kwargs) -> None: ...

class KafkaMessageTimeToCut(_message.Message):
    __slots__ = ("block_number",)
    BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    block_number: int
    def __init__(self, block_number: _Optional[int] = ...) -> None: ...

class KafkaMessageConnect(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class KafkaMetadata(_message.Message):
    __slots__ = ("last_offset_persisted", "last_original_offset_processed", "last_resubmitted_config_offset", "cursor", "bundles", "entries")
    LAST_OFFSET_PERSISTED_FIELD_NUMBER: _ClassVar[int]
    LAST_ORIGINAL_OFFSET_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    LAST_RESUBMITTED_CONFIG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    last_offset_persisted: int
    last_original_offset_processed: int
    last_resubmitted_config_offset: int
    cursor: bytes
    bundles: bytes
    entries: bytes
    def __init__(self, last_offset_persisted: _Optional[int] = ..., last_original_offset_processed: _Optional[int] = ..., last_resubmitted_config_offset: _Optional[int] = ..., cursor: _Optional[bytes] = ..., bundles: _Optional[bytes] = ..., entries: _Optional[bytes] = ...) -> None: ...

class BlockEntries(_message.Message):
    __slots__ = ("logs", "runs")
    LOGS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedScalarFieldContainer[str]
    runs: _containers.RepeatedCompositeFieldContainer[EntryRun]
    def __init__(self, logs: _Optional[_Iterable[str]] = ..., runs: _Optional[_Iterable[_Union[EntryRun, _Mapping]]] = ...) -> None: ...

class EntryRun(_message.Message):
    __slots__ = ("log", "first", "count")
    LOG_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    log: int
    first: int
    count: int
    def __init__(self, log: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class BlockBundles(_message.Message):
    __slots__ = ("parts", "sets")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[BundleMetadata]
    sets: _containers.RepeatedCompositeFieldContainer[SetHead]
    def __init__(self, parts: _Optional[_Iterable[_Union[BundleMetadata, _Mapping]]] = ..., sets: _Optional[_Iterable[_Union[SetHead, _Mapping]]] = ...) -> None: ...

class SetHead(_message.Message):
    __slots__ = ("state", "previous_block")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BLOCK_FIELD_NUMBER: _ClassVar[int]
    state: LogState
    previous_block: int
    def __init__(self, state: _Optional[_Union[LogState, _Mapping]] = ..., previous_block: _Optional[int] = ...) -> None: ...

class BundleMetadata(_message.Message):
    __slots__ = ("index", "bundle_id", "chains", "sibling_sha256")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    SIBLING_SHA256_FIELD_NUMBER: _ClassVar[int]
    index: int
    bundle_id: bytes
    chains: _containers.RepeatedScalarFieldContainer[str]
    sibling_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, index: _Optional[int] = ..., bundle_id: _Optional[bytes] = ..., chains: _Optional[_Iterable[str]] = ..., sibling_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogState(_message.Message):
    __slots__ = ("version", "chains", "offset_next", "markers", "counted", "window_max")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_NEXT_FIELD_NUMBER: _ClassVar[int]
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MAX_FIELD_NUMBER: _ClassVar[int]
    version: int
    chains: _containers.RepeatedScalarFieldContainer[str]
    offset_next: int
    markers: _containers.RepeatedCompositeFieldContainer[ConfigMarker]
    counted: int
    window_max: int
    def __init__(self, version: _Optional[int] = ..., chains: _Optional[_Iterable[str]] = ..., offset_next: _Optional[int] = ..., markers: _Optional[_Iterable[_Union[ConfigMarker, _Mapping]]] = ..., counted: _Optional[int] = ..., window_max: _Optional[int] = ...) -> None: ...

class BundleResponse(_message.Message):
    __slots__ = ("status", "info", "bundle_id", "chain")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    status: int
    info: str
    bundle_id: bytes
    chain: str
    def __init__(self, status: _Optional[int] = ..., info: _Optional[str] = ..., bundle_id: _Optional[bytes] = ..., chain: _Optional[str] = ...) -> None: ...

class SignedRequest(_message.Message):
    __slots__ = ("content", "signature")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    signature: bytes
    def __init__(self, content: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RequestContent(_message.Message):
    __slots__ = ("creator", "nonce", "time_ms", "tls_cert_sha256", "status", "deliver", "log_end")
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TLS_CERT_SHA256_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    creator: bytes
    nonce: bytes
    time_ms: int
    tls_cert_sha256: bytes
    status: StatusRequest
    deliver: DeliverMultiRequest
    log_end: LogEndRequest
    def __init__(self, creator: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., time_ms: _Optional[int] = ..., tls_cert_sha256: _Optional[bytes] = ..., status: _Optional[_Union[StatusRequest, _Mapping]] = ..., deliver: _Optional[_Union[DeliverMultiRequest, _Mapping]] = ..., log_end: _Optional[_Union[LogEndRequest, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("bundle_id", "wait_ms")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    bundle_id: bytes
    wait_ms: int
    def __init__(self, bundle_id: _Optional[bytes] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("status", "info", "unknown", "accepted", "void", "committed", "chains_not_covered")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHAINS_NOT_COVERED_FIELD_NUMBER: _ClassVar[int]
    status: int
    info: str
    unknown: Unknown
    accepted: Accepted
    void: VoidFate
    committed: Committed
    chains_not_covered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[int] = ..., info: _Optional[str] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., void: _Optional[_Union[VoidFate, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., chains_not_covered: _Optional[_Iterable[str]] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VoidFate(_message.Message):
    __slots__ = ("reason", "chain")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    reason: VoidReason
    chain: str
    def __init__(self, reason: _Optional[_Union[VoidReason, str]] = ..., chain: _Optional[str] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[Place]
    def __init__(self, places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("chain", "block", "index")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    chain: str
    block: int
    index: int
    def __init__(self, chain: _Optional[str] = ..., block: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class LogEndRequest(_message.Message):
    __slots__ = ("chains",)
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    chains: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chains: _Optional[_Iterable[str]] = ...) -> None: ...

class LogEndResponse(_message.Message):
    __slots__ = ("status", "info", "offset_next")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    OFFSET_NEXT_FIELD_NUMBER: _ClassVar[int]
    status: int
    info: str
    offset_next: int
    def __init__(self, status: _Optional[int] = ..., info: _Optional[str] = ..., offset_next: _Optional[int] = ...) -> None: ...

class DeliverMultiRequest(_message.Message):
    __slots__ = ("chains", "oldest", "newest", "cursor", "stop")
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    chains: _containers.RepeatedScalarFieldContainer[str]
    oldest: Oldest
    newest: Newest
    cursor: bytes
    stop: Newest
    def __init__(self, chains: _Optional[_Iterable[str]] = ..., oldest: _Optional[_Union[Oldest, _Mapping]] = ..., newest: _Optional[_Union[Newest, _Mapping]] = ..., cursor: _Optional[bytes] = ..., stop: _Optional[_Union[Newest, _Mapping]] = ...) -> None: ...

class Oldest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Newest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeliverMultiResponse(_message.Message):
    __slots__ = ("entry", "end")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    entry: MultiEntry
    end: DeliverEnd
    def __init__(self, entry: _Optional[_Union[MultiEntry, _Mapping]] = ..., end: _Optional[_Union[DeliverEnd, _Mapping]] = ...) -> None: ...

class MultiEntry(_message.Message):
    __slots__ = ("cursor", "bundle_id", "chains", "parts")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    cursor: bytes
    bundle_id: bytes
    chains: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[DeliveredPart]
    def __init__(self, cursor: _Optional[bytes] = ..., bundle_id: _Optional[bytes] = ..., chains: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[DeliveredPart, _Mapping]]] = ...) -> None: ...

class DeliveredPart(_message.Message):
    __slots__ = ("place", "envelope")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    place: Place
    envelope: bytes
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., envelope: _Optional[bytes] = ...) -> None: ...

class DeliverEnd(_message.Message):
    __slots__ = ("status", "info")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    status: int
    info: str
    def __init__(self, status: _Optional[int] = ..., info: _Optional[str] = ...) -> None: ...
