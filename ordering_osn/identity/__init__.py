"""Who signed: X.509 identities of a channel's organisations, and this node's own.

    certificates.py  what one certificate says and checks, and chains of them (`cryptography`)
    msp.py           an organisation's rules: its CAs, revocations, units and roles
    signing.py       this node's identity, from an MSP folder

Other files take from here; `cryptography` is imported in `certificates.py` alone.
"""

from ordering_osn.identity.certificates import fingerprint
from ordering_osn.identity.errors import BadSignature, MalformedMsp, UntrustedIdentity
from ordering_osn.identity.msp import Identity, Msp, Msps, expires_at
from ordering_osn.identity.signing import SigningIdentity

__all__ = [
    "BadSignature",
    "Identity",
    "MalformedMsp",
    "Msp",
    "Msps",
    "SigningIdentity",
    "UntrustedIdentity",
    "expires_at",
    "fingerprint",
]
