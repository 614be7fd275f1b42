"""Random definitions of organisations: most usual, some strange, some damaged."""

import base64

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

from ordering_osn.identity import MspRules
from ordering_osn.identity.certificates import Certificate, Unreadable, tagged
from ordering_osn.identity.encoding import elements
from ordering_osn.protos import FabricMSPConfig, MSPConfig
from tests.ordering_osn.helpers.pki import Certified, certify, key_usage, subject

CURVES = (ec.SECP256R1, ec.SECP224R1, ec.SECP384R1, ec.SECP521R1)
STRANGE_CURVES = (ec.SECP256K1, ec.BrainpoolP256R1)
UNITS = ("client", "peer", "admin", "orderer", "other")
RSA_KEYS = [rsa.generate_private_key(65537, bits) for bits in (1024, 2048)]
SECOND = 1 / 365 / 86400  # of a year
ODD = x509.ObjectIdentifier("1.2.3.4.5.6.7.8.1")
NAMES = (
    x509.DNSName("ca.example.com"),
    x509.DNSName("-x..y"),
    x509.RFC822Name("a@example.com"),
    x509.UniformResourceIdentifier("https://example.com/a"),
    x509.UniformResourceIdentifier("https://a..b/"),
    x509.UniformResourceIdentifier("nothing"),
    x509.UniformResourceIdentifier("urn:uuid:a-b"),
    x509.UniformResourceIdentifier("https://example.com:8080/a"),
    x509.UniformResourceIdentifier("https://a:99999"),
    x509.DirectoryName(subject("other")),
    x509.RegisteredID(ODD),
)


def pem(der, kind="CERTIFICATE"):
    """DER in PEM."""
    text = base64.encodebytes(der).decode().replace("\n", "")
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n".encode()


def signed_again(der, signer, damage):
    """The certificate or revocation list, its signed part damaged, and signed again."""
    signed, algorithm, _ = elements(elements(der)[0].content)
    changed = damage(signed.whole)
    key, digest = signer
    signature = signature_of(key, changed, digest)
    return tagged(0x30, changed + algorithm.whole + tagged(3, b"\0" + signature))


def signature_of(key, message, digest):
    """A signature in the form of the key's kind."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(digest))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    return key.sign(message, padding.PKCS1v15(), digest)


class Organisations:
    """Organisations from one random source; `strange` is how often a part is not the usual."""

    def __init__(self, random):
        self.random, self.strange = random, 0.0

    def odd(self, times=1.0):
        return self.random.random() < self.strange * times

    def key(self):
        if self.odd(0.5):
            return ec.generate_private_key(self.random.choice(STRANGE_CURVES)())
        if self.odd(0.5):
            return ed25519.Ed25519PrivateKey.generate()
        if self.odd(2):
            return self.random.choice(RSA_KEYS)
        return ec.generate_private_key((self.random.choice(CURVES) if self.odd(3) else CURVES[0])())

    def digest(self, key):
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return None
        kinds = (hashes.SHA384, hashes.SHA512, hashes.SHA224, hashes.SHA3_256)
        return self.random.choice(kinds)() if self.odd(2) else hashes.SHA256()

    def usages(self):
        kinds = (Usage.SERVER_AUTH, Usage.CLIENT_AUTH, Usage.ANY_EXTENDED_KEY_USAGE, ODD)
        return x509.ExtendedKeyUsage(self.random.sample(kinds, self.random.randint(1, 2)))

    def extensions(self):
        random, made = self.random, []
        critical = random.random() < 0.4
        if self.odd(2):
            made.append(self.usages())
        if self.odd():
            made.append(x509.UnrecognizedExtension(ODD, b"attributes"))
        if self.odd():
            made.append(x509.SubjectAlternativeName(random.sample(NAMES, random.randint(1, 2))))
        if self.odd():
            made.append(x509.NameConstraints([x509.DNSName("example.com")], None))
        if self.odd():
            made.append(x509.PolicyConstraints(random.randint(0, 1), None))
        if self.odd():
            made.append(x509.InhibitAnyPolicy(0))
        if self.odd():
            policies = [x509.PolicyInformation(ODD, None)] * random.randint(1, 2)
            made.append(x509.CertificatePolicies(policies))
        if self.odd():
            made.append(x509.AuthorityKeyIdentifier(b"key", None, None))
        if self.odd():
            number = random.choice([ODD, x509.ObjectIdentifier("1.2.4294967296")])
            access = x509.AccessDescription(number, x509.UniformResourceIdentifier("http://a/"))
            made.append(x509.AuthorityInformationAccess([access]))
        return [(extension, critical) for extension in made]

    def certificate(self, signer, name, *, ca, units=()):
        """Certify somebody; without a `signer`, by itself."""
        random = self.random
        key = self.key()
        begins = 0 if ca else 0.5
        if self.odd():
            begins = random.choice([1, 5])
        ends = begins + (random.choice([0, 1.01, 2.01]) * SECOND if self.odd() else 15)
        constraints = None
        if self.odd(2):
            length = random.choice([None, 0, 1]) if ca else None
            constraints = random.choice([False, x509.BasicConstraints(ca, length)])
        issuer = subject(name, units) if signer is None else signer.certificate.subject
        signing = key if signer is None or self.odd(0.5) else signer.key
        digest = self.digest(signing)
        made = certify(
            signing,
            issuer,
            subject(name, units),
            key,
            ca=ca,
            begins=begins,
            ends=ends,
            constraints=constraints,
            usage=key_usage(certificates=False) if self.odd() else None,
            key_id=not self.odd(0.5),
            extensions=self.extensions(),
            digest=lambda: digest,
        )
        return self.damaged(made, (signing, digest)) if self.odd(5) else made

    def damage(self, signed):
        changed = bytearray(signed)
        for _ in range(self.random.choice([1, 1, 2])):
            at = self.random.randrange(4, len(changed))
            bit, byte = changed[at] ^ 1 << self.random.randrange(8), self.random.randrange(256)
            changed[at] = self.random.choice([bit, byte])
        return bytes(changed)

    def damaged(self, certified, signer):
        """Change a byte or two of the signed part, so that we can still read it."""

        for _ in range(20):
            der = signed_again(certified.der, signer, self.damage)
            try:
                Certificate(der)
            except Unreadable:
                continue
            return Certified(x509.load_der_x509_certificate(der), certified.key)
        return certified

    def written(self, certified):
        """The certificate as a definition holds it: PEM, or what is nearly PEM."""
        if not self.odd():
            return certified.pem
        usual = certified.pem
        head, *lines, tail = usual.decode().splitlines()
        body = "\n".join(lines)
        return self.random.choice(
            [
                certified.der,
                b"",
                b" " + usual,
                b"\n" + usual,
                b"text\n" + usual,
                usual + b"text",
                usual.replace(b"\n", b"\r\n"),
                usual.replace(b"\n", b" \n"),
                usual + usual,
                usual.rstrip(),
                f"{head}{''.join(lines)}{tail}".encode(),
                f"{head}\n{''.join(lines)}{tail}".encode(),
                f"{head}\n{''.join(lines)}\n{tail}".encode(),
                f"{head}\nProc-Type: 4\n\n{body}\n{tail}\n".encode(),
                f"{head}\n\n{body}\n{tail}\n".encode(),
                f"{head} \n{body}\n{tail}x\n".encode(),
                pem(b"nothing", "EC PARAMETERS") + usual,
                pem(certified.der, "X509 CERTIFICATE"),
                pem(certified.der + b"\0"),
            ]
        )

    def family(self, name):
        """CAs: roots, and CAs below them, which may certify each other again."""
        random = self.random
        roots = [
            self.certificate(None, f"{name}{at}", ca=not self.odd(0.5))
            for at in range(random.choice([1, 1, 1, 2]))
        ]
        if self.odd():
            roots = []
        below = []
        for at in range(random.choice([0, 0, 1, 2])):
            if self.odd(2):
                stranger = self.certificate(None, "stranger", ca=True)
                below.append(self.certificate(stranger, "strange", ca=True))
                continue
            parent = random.choice([*roots, *below] or [None])
            below.append(self.certificate(parent, f"{name} {at}", ca=not self.odd(0.5)))
        if self.odd(3) and roots:
            random.choice([roots, below]).append(random.choice([*roots, *below]))
        if self.odd() and roots:
            again = roots[0]
            roots.append(
                self.certificate(again, again.certificate.subject.rfc4514_string()[3:], ca=True)
            )
        return roots, below

    def certifiers(self, cas):
        return self.written(self.random.choice(cas)) if cas and self.random.random() < 0.2 else b""

    def definition(self):
        """One serialized MSPConfig."""
        random = self.random
        self.strange = random.choice([0.002, 0.005, 0.02])
        roots, below = self.family("root")
        tls_roots, tls_below = self.family("tls") if random.random() < 0.7 else ([], [])
        cas = self.cas = [*roots, *below]
        config = FabricMSPConfig(
            name="" if self.odd(0.3) else "Org1",
            root_certs=map(self.written, roots),
            intermediate_certs=map(self.written, below),
            tls_root_certs=map(self.written, tls_roots),
            tls_intermediate_certs=map(self.written, tls_below),
        )
        for at in range(random.choice([0, 0, 1, 2])):
            units = random.sample(UNITS, random.choice([1, 1, 2]))
            signer = random.choice(cas) if cas and not self.odd() else None
            admin = self.certificate(signer, f"admin{at}", ca=self.odd(), units=units)
            config.admins.append(self.written(admin))
        if random.random() < 0.8:
            nodes = config.fabric_node_ous
            nodes.enable = random.random() < 0.8
            for role in ("client", "peer", "admin", "orderer"):
                if self.odd(2):
                    continue
                unit = getattr(nodes, f"{role}_ou_identifier")
                unit.organizational_unit_identifier = role
                other = [self.certificate(None, "stray", ca=True)] if self.odd(0.5) else cas
                unit.certificate = self.certifiers(other)
        if random.random() < 0.1:
            config.organizational_unit_identifiers.add(
                organizational_unit_identifier=random.choice(UNITS),
                certificate=self.certifiers(cas) if self.odd() else (cas[0].pem if cas else b""),
            )
        if random.random() < 0.15 and cas:
            config.revocation_list.append(self.revocations(cas))
        if random.random() < 0.8:
            crypto = config.crypto_config
            crypto.signature_hash_family = "MD5" if self.odd(0.3) else "SHA2"
            function = random.choice(["SHA256", "SHA384", "SHA3_256", "", "MD5"])
            crypto.identity_identifier_hash_function = function if self.odd() else "SHA256"
        if self.odd(0.5):
            config.signing_identity.public_signer = b"somebody"
        kind = random.choice([0, 1, 2]) if self.odd(0.5) else 0
        return MSPConfig(type=kind, config=config.SerializeToString()).SerializeToString()

    def rules(self):
        """A version of the rules; mostly the newest."""
        return self.random.choice([*MspRules, MspRules.V1_4_3, MspRules.V1_4_3])

    def member(self):
        """A member's certificate, by a CA of the newest definition."""
        signer = self.random.choice(self.cas) if self.cas else None
        units = self.random.sample(UNITS, self.random.choice([1, 1, 1, 2]))
        return self.certificate(signer, "member", ca=False, units=units)

    def revocations(self, cas):
        """A revocation list of a CA, which may name another CA."""
        random = self.random
        signer = random.choice([ca for ca in cas if self._signs(ca)] or [None])
        if signer is None:
            return b"nothing"
        raw = signer.revoke(*random.sample(cas, 1), key_id=not self.odd())
        if random.random() < 0.5:
            der = x509.load_pem_x509_crl(raw).public_bytes(serialization.Encoding.DER)
            raw = signed_again(der, (signer.key, hashes.SHA256()), self.damage)
        elif self.odd(3):
            raw = random.choice([b"\n" + raw, raw.rstrip(), raw.replace(b"\n", b""), raw + b"more"])
        return raw

    @staticmethod
    def _signs(ca):
        return isinstance(ca.key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
