"""An organisation's rules (its MSP): which certificates are its members, in which roles.

`Msp` reads the MSPConfig of a channel config; `Msps.identity` reads the creator of a signature
header; an `Identity` tells whether it is valid and satisfies a policy's principal. No clock: an
expired certificate still verifies what it signed. The expiration filter refuses new envelopes of
expired creators (`expires_at`).

    unit         an organizational unit (OU) of a certificate's subject; it counts together with
                 the chain of CAs that certified it
    node unit    with NodeOUs, the unit that makes a certificate a client, peer, orderer or admin
    inner CA     a CA that certified another configured CA; it may not certify members

The rules are Fabric's, by the channel's capabilities (`MspRules`), with one difference: an
administrator listed by certificate must be a valid member at each check, not only at the first.
A definition that Fabric refuses is refused: its peers could never go past the block that holds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import IntEnum
from functools import cached_property, lru_cache

from ordering_osn.identity.certificates import (
    HASH_FAMILIES,
    Authorities,
    Certificate,
    Revocations,
    Unreadable,
)
from ordering_osn.identity.errors import BadSignature, MalformedMsp, UntrustedIdentity
from ordering_osn.protos import (
    CombinedPrincipal,
    DecodeError,
    FabricMSPConfig,
    MSPConfig,
    MSPIdentityAnonymity,
    MSPPrincipal,
    MSPRole,
    OrganizationUnit,
    SerializedIdentity,
)
from ordering_osn.quoting import quoted

CREATOR_BYTES_MAX = 16 * 1024  # a certificate has about 1 kB; a longer creator is not decoded
# Cached certificates, and identities for each config: some kB each. A client beyond that costs the
# reading and checking of its certificate with each envelope again.
_IDENTITIES_KEPT_MAX = 4096
# How a signature is verified: the signed part of the certificate with the key, and the hash family.
Verification = tuple[bytes, str]
_FAMILY_SHA2 = "SHA2"
_SINCE_V1_3 = (MSPPrincipal.COMBINED, MSPPrincipal.ANONYMITY)
_TYPE_X509 = 0  # MSPConfig.type of X.509; 1 is Idemix
_CHAIN_HASHES = {
    "": "sha256",
    "SHA256": "sha256",
    "SHA384": "sha384",
    "SHA3_256": "sha3_256",
    "SHA3_384": "sha3_384",
}
# Those of V1_1 and V1_3; where two roles have one unit, the last counts.
_OLD_NODE_UNITS = (
    (MSPRole.PEER, "peer_ou_identifier"),
    (MSPRole.CLIENT, "client_ou_identifier"),
)
_NODE_UNITS = (
    *reversed(_OLD_NODE_UNITS),
    (MSPRole.ADMIN, "admin_ou_identifier"),
    (MSPRole.ORDERER, "orderer_ou_identifier"),
)


class MspRules(IntEnum):
    """The version of the rules, as Fabric's `MSPVersion`: each peer of a channel has the same."""

    V1_0 = 0
    """There are no node units."""
    V1_1 = 1
    """A node unit makes clients and peers; administrators are listed, and clients."""
    V1_3 = 2
    """Also principals that combine others, and of anonymity."""
    V1_4_3 = 3
    """Also units of administrators and orderers. Every V2 channel has these rules."""


def expires_at(creator: bytes) -> datetime | None:
    """Return when the creator's certificate expires (aware, UTC); None where it has none.

    Needs no channel: Fabric's expiration filter checks the certificate alone, before any policy.
    """
    try:
        return _certified(creator)[1].not_after
    except UntrustedIdentity:
        return None


def verify_as(creator: bytes, message: bytes, signature: bytes) -> Verification:
    """Raise unless the creator's certificate has the key that signed `message` (SHA-256, low S).

    Returns how it was verified. Needs no channel, and says nothing of whether any trusts the
    certificate. Raises `BadSignature`, or `UntrustedIdentity` where the creator cannot be read.
    """
    msp_id, certificate = _certified(creator)
    try:
        certificate.verifier(_FAMILY_SHA2)(message, signature)
    except Unreadable as error:
        raise BadSignature(f"{certificate.name} of {msp_id}: {error}") from error
    return certificate.signed, _FAMILY_SHA2


def _certified(creator: bytes) -> tuple[str, Certificate]:
    if not creator:
        raise UntrustedIdentity("there is no creator")
    if len(creator) > CREATOR_BYTES_MAX:
        raise UntrustedIdentity(f"the creator has more than {CREATOR_BYTES_MAX} bytes")
    return _read_creator(creator)


@lru_cache(maxsize=_IDENTITIES_KEPT_MAX)
def _read_creator(creator: bytes) -> tuple[str, Certificate]:
    try:
        identity = SerializedIdentity.FromString(creator)
    except DecodeError as error:
        raise UntrustedIdentity("the creator is not a serialized identity") from error
    try:
        return identity.mspid, Certificate.from_pem(identity.id_bytes)
    except Unreadable as error:
        raise UntrustedIdentity(
            f"the creator of MSP {quoted(identity.mspid)} holds {error}"
        ) from error


class Identity:
    """One certificate at one organisation. Its validity is decided once and cached.

    `key` identifies it: two encodings of the same certificate are one identity. Identities with the
    same `verification`, at other organisations or in other channels, verify the same signatures.
    """

    def __init__(self, msp: Msp, certificate: Certificate) -> None:
        self._msp, self._certificate = msp, certificate
        self.msp_id, self.units = msp.name, certificate.units
        self.expires = certificate.not_after
        self.key = (msp.name, certificate.signed)
        self.verification: Verification = (certificate.signed, msp.hash_family)
        try:
            self._verify = certificate.verifier(msp.hash_family)
        except Unreadable as error:
            raise UntrustedIdentity(f"{self}: {error}") from error

    def __str__(self) -> str:
        return f"{self._certificate.name} of {self.msp_id}"

    def verify(self, message: bytes, signature: bytes) -> None:
        """Raise `BadSignature` unless this identity signed `message` (low S, DER)."""
        try:
            self._verify(message, signature)
        except Unreadable as error:
            raise BadSignature(f"{self}: {error}") from error

    def validate(self) -> None:
        """Raise `UntrustedIdentity` unless its organisation accepts it."""
        if self.problem is not None:
            raise UntrustedIdentity(f"{self}: {self.problem}")

    def satisfies(self, principal: MSPPrincipal) -> bool:
        """Whether the identity is valid and has the principal's role, unit or certificate."""
        return self._msp.admits(self, principal)

    @cached_property
    def problem(self) -> str | None:
        """Why its organisation does not accept it; None where it does."""
        try:
            self._msp.check(self._certificate)
        except Unreadable as error:
            return str(error)
        return None

    @cached_property
    def chain_id(self) -> bytes:
        """The digest of its chain of CAs; empty where it has no chain."""
        try:
            return self._msp.chain_id(self._msp.member_chain(self._certificate)[1:])
        except Unreadable:
            return b""


class Msp:
    """One organisation's rules, from its definition in a channel config; `name` is its MSP ID."""

    def __init__(self, raw: bytes, rules: MspRules = MspRules.V1_4_3) -> None:
        """Read a serialized MSPConfig, the value `MSP` of a group; raises `MalformedMsp`."""
        self.raw = raw
        self._rules = rules
        self.name = ""
        try:
            self._read(raw)
        except (DecodeError, Unreadable, UntrustedIdentity) as error:
            raise MalformedMsp(f"the MSP {self.name!r} cannot be used: {error}") from error

    def _read(self, raw: bytes) -> None:
        outer = MSPConfig.FromString(raw)
        if outer.type != _TYPE_X509:
            raise Unreadable(
                f"its type is {outer.type}; only X.509 (type {_TYPE_X509}) is supported"
            )
        config = FabricMSPConfig.FromString(outer.config)
        self.name = config.name
        if not self.name:
            raise Unreadable("it has no name")
        crypto = config.crypto_config
        self.hash_family = crypto.signature_hash_family or "SHA2"
        if self.hash_family not in HASH_FAMILIES:
            raise Unreadable(f"its signature hash family {self.hash_family!r} is unknown")
        self._chain_hash = _CHAIN_HASHES.get(crypto.identity_identifier_hash_function)
        if self._chain_hash is None:
            raise Unreadable(
                f"its hash function {crypto.identity_identifier_hash_function!r} is unknown"
            )
        if config.HasField("signing_identity"):
            raise Unreadable("it holds a private key or a reference to one")
        self._revocations = [Revocations(raw_list) for raw_list in config.revocation_list]
        tls_roots = _certificates(config.tls_root_certs, "TLS CA")
        tls = _certificates(config.tls_intermediate_certs, "TLS CA")
        self._check_chains(Authorities(tls_roots, tls))
        # As they were read: what else the bytes hold would be for gRPC to read, or to stumble over.
        self.tls_authorities = tuple(each.pem() for each in (*tls_roots, *tls))
        self._read_authorities(config)
        self._read_units(config)
        self._read_administrators(config)

    def _read_authorities(self, config: FabricMSPConfig) -> None:
        roots = _certificates(config.root_certs, "root CA")
        intermediates = _certificates(config.intermediate_certs, "intermediate CA")
        if not roots:
            raise Unreadable("it has no root CA")
        for certificate in (*roots, *intermediates):
            _check_authority(certificate)
            if not certificate.certifies_members:
                raise Unreadable(f"the key of the CA {certificate.name} is neither ECDSA nor RSA")
        for certificate in roots:
            if not certificate.certifies_itself:
                raise Unreadable(f"the root CA {certificate.name} does not certify itself")
        self.authorities = Authorities(roots, intermediates)
        self._inner = self._check_chains(self.authorities)

    def _check_chains(self, authorities: Authorities) -> set[bytes]:
        """Raise unless each is a valid CA; return those that certified another."""
        inner: set[bytes] = set()
        for certificate in (*authorities.roots, *authorities.intermediates):
            _check_authority(certificate)
            try:
                chain = authorities.chain(certificate)
                self._check_revoked(chain)
            except Unreadable as error:
                raise Unreadable(f"the CA {certificate.name} is not valid: {error}") from error
            inner.update(authority.signed for authority in chain[1:])
        return inner

    def _read_units(self, config: FabricMSPConfig) -> None:
        self._units: list[tuple[str, bytes]] = [
            (unit.organizational_unit_identifier, self._certifier(unit.certificate))
            for unit in config.organizational_unit_identifiers
        ]
        nodes = config.fabric_node_ous
        self._node_units: dict[int, tuple[str, bytes]] = {}
        if self._rules == MspRules.V1_0 or not config.HasField("fabric_node_ous"):
            return
        old = self._rules < MspRules.V1_4_3
        for role, field in _OLD_NODE_UNITS if old else _NODE_UNITS:
            unit = getattr(nodes, field)
            if old and not unit.organizational_unit_identifier:
                raise Unreadable(
                    "it has no unit for clients, or none for peers, "
                    "without the channel capability V1_4_3"
                )
            if nodes.HasField(field):
                certifier = self._certifier(unit.certificate, optional=True)
                self._node_units[role] = unit.organizational_unit_identifier, certifier
        if not nodes.enable:  # read all the same: a unit that cannot be read makes Fabric refuse
            self._node_units = {}

    def _certifier(self, pem: bytes, *, optional: bool = False) -> bytes:
        """Return the digest of the chain that begins at a configured CA."""
        if optional and not pem:
            return b""
        (certificate,) = _certificates([pem], "unit's")
        known = (*self.authorities.roots, *self.authorities.intermediates)
        if all(certificate.signed != authority.signed for authority in known):
            raise Unreadable(f"the certifier {certificate.name} of a unit is not one of its CAs")
        chain = self.authorities.chain(certificate)
        if len(chain) > 1 and certificate.signed in self._inner:
            raise Unreadable(f"the certifier {certificate.name} of a unit certifies other CAs")
        return self.chain_id(chain)

    def _read_administrators(self, config: FabricMSPConfig) -> None:
        administrators = _certificates(config.admins, "administrator's")
        old = self._rules < MspRules.V1_4_3
        if not old and not administrators and MSPRole.ADMIN not in self._node_units:
            raise Unreadable("it has neither administrators nor a unit for administrators")
        self._administrators = {certificate.signed for certificate in administrators}
        for certificate in administrators:
            identity = Identity(self, certificate)
            known = self._has_role(identity, MSPRole.CLIENT) or self._has_role(
                identity, MSPRole.ADMIN
            )
            valid = identity.problem is None if old else identity.chain_id
            if self._node_units and not (valid and known):
                raise Unreadable(
                    f"its administrator {certificate.name} is neither client nor admin"
                )
            if not self._node_units and identity.problem is not None:
                raise Unreadable(f"its administrator {identity} is not valid: {identity.problem}")

    def chain_id(self, chain: Sequence[Certificate]) -> bytes:
        """Return the digest of these CAs, nearest first."""
        assert self._chain_hash is not None
        digest = hashlib.new(self._chain_hash)
        for certificate, signer in zip(chain, (*chain[1:], chain[-1]), strict=True):
            digest.update(certificate.low(signer))
        return digest.digest()

    def check(self, certificate: Certificate) -> None:
        """Raise `Unreadable` with the reason unless the certificate is a valid member's."""
        chain = self.member_chain(certificate)
        self._check_revoked(chain)
        self._check_units(certificate, self.chain_id(chain[1:]))

    def member_chain(self, certificate: Certificate) -> tuple[Certificate, ...]:
        """Return the chain from a member's certificate to a root; raises `Unreadable`."""
        if certificate.is_ca:
            raise Unreadable("a CA's certificate cannot be an identity")
        chain = self.authorities.chain(certificate)
        if len(chain) < 2 or chain[1].signed in self._inner:
            raise Unreadable(
                "its CA certifies other CAs: only a CA at the end of a chain may certify members"
            )
        return chain

    def _check_revoked(self, chain: Sequence[Certificate]) -> None:
        if len(chain) < 2:
            return
        certificate, parent = chain[:2]
        for revocations in self._revocations:
            if (
                revocations.issuer_key_id == parent.key_id
                and revocations.names(certificate.serial)
                and parent.has_signed(revocations)
            ):
                raise Unreadable("its certificate is revoked")

    def _check_units(self, certificate: Certificate, chain_id: bytes) -> None:
        units = [(unit, chain_id) for unit in certificate.units]
        if self._units and not any(unit in self._units for unit in units):
            raise Unreadable("it has none of the units that the organisation requires")
        if not self._node_units:
            return
        roles = [node for unit in certificate.units for node in self._node_units_of(unit)]
        if any(certifier not in (b"", chain_id) for _unit, certifier in roles):
            raise Unreadable(
                "its node unit was certified by another CA than the one configured for it"
            )
        if len(roles) != 1:
            raise Unreadable(
                "it must have exactly one of the units client, peer, orderer and admin"
            )

    def _node_units_of(self, unit: str) -> list[tuple[str, bytes]]:
        return [node for node in self._node_units.values() if node[0] == unit][-1:]

    def admits(self, identity: Identity, principal: MSPPrincipal) -> bool:
        """Whether the identity (of this MSP) is valid and satisfies the principal."""
        unchecked = [principal]
        while unchecked:
            current = unchecked.pop()
            kind = current.principal_classification
            if self._rules < MspRules.V1_3 and kind in _SINCE_V1_3:
                return False
            if kind != MSPPrincipal.COMBINED:
                if not self._admits(identity, current):
                    return False
                continue
            try:
                inner = CombinedPrincipal.FromString(current.principal).principals
            except DecodeError:
                return False
            if not inner:
                return False
            unchecked.extend(inner)
        return True

    def _admits(self, identity: Identity, principal: MSPPrincipal) -> bool:
        kind, what = principal.principal_classification, principal.principal
        try:
            if kind == MSPPrincipal.ROLE:
                role = MSPRole.FromString(what)
                return role.msp_identifier == self.name and self._is(identity, role.role)
            if kind == MSPPrincipal.ORGANIZATION_UNIT:
                return self._is_of_unit(identity, OrganizationUnit.FromString(what))
            if kind == MSPPrincipal.IDENTITY:
                msp_id, certificate = _certified(what)
                same = (msp_id, certificate.signed) == identity.key
                return same and identity.problem is None
            if kind == MSPPrincipal.ANONYMITY:
                anonymity = MSPIdentityAnonymity.FromString(what).anonymity_type
                return bool(anonymity == MSPIdentityAnonymity.NOMINAL)
        except (DecodeError, UntrustedIdentity):
            return False
        return False

    def _is(self, identity: Identity, role: int) -> bool:
        if identity.problem is not None:
            return False
        if role == MSPRole.MEMBER:
            return True
        if role == MSPRole.ADMIN and identity.key[1] in self._administrators:
            return True
        return self._has_role(identity, role)

    def _has_role(self, identity: Identity, role: int) -> bool:
        return role in self._node_units and self._node_units[role][0] in identity.units

    def _is_of_unit(self, identity: Identity, unit: OrganizationUnit) -> bool:
        return (
            unit.msp_identifier == self.name
            and identity.problem is None
            and unit.organizational_unit_identifier in identity.units
            and bytes(unit.certifiers_identifier) == identity.chain_id
        )


class Msps:
    """The organisations of one channel config, by MSP ID."""

    def __init__(self, msps: Iterable[Msp]) -> None:
        self._msps: dict[str, Msp] = {}
        for msp in msps:
            known = self._msps.setdefault(msp.name, msp)
            if MSPConfig.FromString(known.raw) != MSPConfig.FromString(msp.raw):
                raise MalformedMsp(f"there are two different MSPs with the ID {msp.name}")
        self._identity = lru_cache(maxsize=_IDENTITIES_KEPT_MAX)(self._read)

    @property
    def names(self) -> tuple[str, ...]:
        """MSP IDs, sorted."""
        return tuple(sorted(self._msps))

    @cached_property
    def tls_authorities(self) -> bytes:
        """The CAs of the organisations' TLS certificates (PEM)."""
        return b"\n".join(pem for name in self.names for pem in self._msps[name].tls_authorities)

    def identity(self, creator: bytes) -> Identity:
        """Read a signature header's creator; neither its signature nor its validity is checked.

        Raises `UntrustedIdentity` where there is no creator or certificate, where its MSP is not
        one of this channel's, or where its key cannot sign. The same creator returns the same
        object as long as it is cached.
        """
        return self._identity(creator)

    def _read(self, creator: bytes) -> Identity:
        msp_id, certificate = _certified(creator)
        if msp_id not in self._msps:
            raise UntrustedIdentity(
                f"the creator's MSP {quoted(msp_id)} is not one of this channel's"
            )
        return Identity(self._msps[msp_id], certificate)


def _certificates(pems: Iterable[bytes], what: str) -> list[Certificate]:
    certificates = []
    for pem in pems:
        try:
            certificates.append(Certificate.from_pem(pem))
        except Unreadable as error:
            raise Unreadable(f"a {what} certificate cannot be used: {error}") from error
    return certificates


def _check_authority(certificate: Certificate) -> None:
    if not certificate.is_ca:
        raise Unreadable(f"the certificate {certificate.name} is not a CA's")
    if certificate.key_id is None:
        raise Unreadable(f"the CA {certificate.name} has no subject key identifier")
