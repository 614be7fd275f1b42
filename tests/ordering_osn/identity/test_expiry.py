"""Certificates of the node itself that have expired, or soon will, are warned of."""

from datetime import timedelta

from ordering_osn.identity import expiry_warning
from tests.ordering_osn.helpers.pki import root, years


def test_a_certificate_is_warned_of_from_a_week_before_its_end():
    certificate = root().issue("node", ends=5).pem
    end = years(5)

    def warning(now):
        return expiry_warning("--msp", certificate, now)

    assert warning(end - timedelta(days=7, seconds=1)) is None
    assert "the certificate node of --msp expires at" in warning(end - timedelta(days=7))
    assert "the certificate node of --msp expired at" in warning(end)


def test_what_is_no_certificate_is_not_warned_of():
    assert expiry_warning("--tls-cert", b"x", years(5)) is None
