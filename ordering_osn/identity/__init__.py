"""X.509 identities: those of a channel's organisations, and the node's own.

    certificates.py  certificates, keys, revocation lists and chains; wraps `cryptography`
    msp.py           an organisation's rules: its CAs, revocations, units and roles
    signing.py       the node's identity, from an MSP folder

Other packages import from here; only `certificates.py` imports `cryptography`.
"""

from ordering_osn.identity.certificates import fingerprint
from ordering_osn.identity.errors import BadSignature, MalformedMsp, UntrustedIdentity
from ordering_osn.identity.msp import (
    Identity,
    Msp,
    MspRules,
    Msps,
    Verification,
    expires_at,
    verify_as,
)
from ordering_osn.identity.signing import SigningIdentity, warn_if_others_read

__all__ = [
    "BadSignature",
    "Identity",
    "MalformedMsp",
    "Msp",
    "MspRules",
    "Msps",
    "SigningIdentity",
    "UntrustedIdentity",
    "Verification",
    "expires_at",
    "fingerprint",
    "verify_as",
    "warn_if_others_read",
]
