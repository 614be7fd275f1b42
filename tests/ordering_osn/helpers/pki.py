"""Organisations made on the spot: CAs, members, revocation lists, MSP definitions, policies."""

import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.x509.oid import NameOID

from ordering_osn.identity import Msp
from ordering_osn.protos import (
    ConfigGroup,
    FabricMSPConfig,
    ImplicitMetaPolicy,
    MSPConfig,
    MSPPrincipal,
    MSPRole,
    Policy,
    SerializedIdentity,
    SignaturePolicy,
    SignaturePolicyEnvelope,
)

PEM = serialization.Encoding.PEM
THEN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def years(count):
    return THEN + dt.timedelta(days=365 * count)


def subject(name, units=()):
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


@dataclass
class Certified:
    """A certificate and its private key: a CA's or a member's."""

    certificate: x509.Certificate
    key: object

    @property
    def pem(self):
        return self.certificate.public_bytes(PEM)

    @property
    def der(self):
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def key_pem(self):
        return self.key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def creator(self, msp_id="Org1"):
        return SerializedIdentity(mspid=msp_id, id_bytes=self.pem).SerializeToString()

    def sign(self, message, *, high=False, digest=hashes.SHA256):
        r, s = decode_dss_signature(self.key.sign(message, ec.ECDSA(digest())))
        order = {"secp256r1": P256_ORDER}.get(self.key.curve.name)
        if order is not None and (s > order // 2) != high:
            s = order - s
        return encode_dss_signature(r, s)

    def respelled(self):
        """Negate the S of its own signature (P-256): other bytes, as valid."""
        signature = self.certificate.signature
        r, s = decode_dss_signature(signature)
        start = self.der.index(self.certificate.tbs_certificate_bytes)
        other = encode_dss_signature(r, P256_ORDER - s)
        body = self.der[start : -len(signature)][:-3] + bytes((3, len(other) + 1, 0)) + other
        size = len(body).to_bytes(2, "big")
        return Certified(x509.load_der_x509_certificate(b"\x30\x82" + size + body), self.key)

    def issue(self, name, *, units=(), key=None, **what):
        """Certify somebody; `what` is what `certify` takes."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        return certify(self.key, self.certificate.subject, subject(name, units), key, **what)

    def revoke(self, *members, by=None, names=None, key_id=True):
        """A revocation list of this CA, as PEM; `by` another key, it is signed wrongly.

        `names` is the key that it says it is of.
        """
        named = names or self.key
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(years(1))
            .next_update(years(2))
        )
        if key_id:
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(named.public_key()), False
            )
        for member in members:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(member.certificate.serial_number)
                .revocation_date(years(1))
                .build()
            )
        return builder.sign(by or self.key, hashes.SHA256()).public_bytes(PEM)


def certify(
    signer,
    issuer,
    name,
    key,
    *,
    ca=False,
    begins=0.5,
    ends=10,
    constraints=None,
    usage=None,
    key_id=True,
    extensions=(),
    digest=hashes.SHA256,
    serial=None,
):
    """Make a certificate. `begins` and `ends` are years after `THEN`."""
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(years(begins))
        .not_valid_after(years(ends))
    )
    if constraints is not False:
        constraints = constraints or x509.BasicConstraints(ca=ca, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
    if key_id:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    builder = builder.add_extension(usage or key_usage(certificates=ca), critical=True)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return Certified(builder.sign(signer, digest()), key)


def key_usage(*, certificates):
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def root(name="root", *, key=None, ca=True, begins=0, ends=20, **what):
    """A CA that certifies itself."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    named = subject(name)
    return certify(key, named, named, key, ca=ca, begins=begins, ends=ends, **what)


def msp_bytes(
    roots,
    *,
    name="Org1",
    intermediates=(),
    admins=(),
    revocations=(),
    units=(),
    nodes=None,
    enforced=True,
    family="SHA2",
    tls=(),
    kind=0,
):
    """Serialized MSPConfig. `nodes`: {"client": certifier or None, ...}; `units`: [(OU, CA)]."""
    config = FabricMSPConfig(
        name=name,
        root_certs=[one.pem for one in roots],
        intermediate_certs=[one.pem for one in intermediates],
        admins=[one.pem for one in admins],
        revocation_list=list(revocations),
        tls_root_certs=[one.pem for one in tls],
    )
    config.crypto_config.signature_hash_family = family
    config.crypto_config.identity_identifier_hash_function = "SHA256"
    for unit, certifier in units:
        config.organizational_unit_identifiers.add(
            organizational_unit_identifier=unit, certificate=certifier.pem
        )
    if nodes is not None:
        config.fabric_node_ous.enable = enforced
    for role, certifier in (nodes or {}).items():
        field = getattr(config.fabric_node_ous, f"{role}_ou_identifier")
        field.organizational_unit_identifier = role
        field.certificate = certifier.pem if certifier else b""
    return MSPConfig(type=kind, config=config.SerializeToString()).SerializeToString()


NODES = {"client": None, "peer": None, "admin": None, "orderer": None}


def node_msp(authority, name="Org1", **what):
    """The usual organisation: one root, NodeOUs."""
    return Msp(msp_bytes([authority], name=name, nodes=NODES, **what))


def role(kind, msp_id="Org1"):
    return MSPPrincipal(
        principal_classification=MSPPrincipal.ROLE,
        principal=MSPRole(msp_identifier=msp_id, role=kind).SerializeToString(),
    )


def by(index):
    return SignaturePolicy(signed_by=index)


def out_of(needed, *rules):
    return SignaturePolicy(n_out_of=SignaturePolicy.NOutOf(n=needed, rules=rules))


def signature_policy(rule, *principals, version=0):
    value = SignaturePolicyEnvelope(version=version, rule=rule, identities=principals)
    return Policy(type=Policy.SIGNATURE, value=value.SerializeToString())


def meta_policy(rule, sub_policy):
    value = ImplicitMetaPolicy(
        rule=ImplicitMetaPolicy.Rule.Value(rule) if isinstance(rule, str) else rule,
        sub_policy=sub_policy,
    )
    return Policy(type=Policy.IMPLICIT_META, value=value.SerializeToString())


def group(policies=None, groups=None):
    made = ConfigGroup()
    for name, policy in (policies or {}).items():
        made.policies[name].policy.CopyFrom(policy)
    for name, below in (groups or {}).items():
        made.groups[name].CopyFrom(below)
    return made


def assert_one_sentence(error):
    assert str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
