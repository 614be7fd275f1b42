"""When certificates end: read from PEM as OpenSSL reads it, said a month before, once a day."""

import ssl
import time

import pytest

from collectors.doctor.consumer_checks import of_certificates
from multicast.drivers import certificates
from multicast.drivers.certificates import WARNED_BEFORE_S, end_of, expiry_warning, watch_files
from multicast.metrics.exposition import certificate_samples
from tests.helpers.certificates import certificate
from tests.ordering_osn.helpers.pki import root, years


@pytest.mark.parametrize("ends", [5, 29.9, 30.1, 80])  # years after 2020; from 2050 on in long form
def test_the_end_is_the_one_that_openssl_reads(ends, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_bytes(b"a comment\n" + root(ends=ends).pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(file)
    (read,) = context.get_ca_certs()
    assert end_of(file.read_bytes()) == ssl.cert_time_to_seconds(read["notAfter"])


@pytest.mark.parametrize(("authorities", "end"), [(False, 5), (True, 7)])
def test_of_several_the_first_end_counts_but_of_authorities_only_of_those_that_go_on(
    authorities, end
):
    bundle = b"".join(root(ends=ends).pem for ends in (6, 5, 7))
    assert end_of(bundle, authorities=authorities) == years(end).timestamp()


@pytest.mark.parametrize("pem", [b"", b"no", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END"])
def test_what_is_no_certificate_has_no_end_and_is_not_warned_of(pem):
    assert end_of(pem) is None
    assert expiry_warning("--tls-cert", None, 0.0) is None


def test_any_byte_may_be_wrong():
    pem = root().pem
    for at in range(len(pem)):
        end_of(pem[:at] + b"A" + pem[at + 1 :])


def test_a_certificate_is_warned_of_from_a_month_before_its_end():
    warnings = [expiry_warning("--msp", 1e9, 1e9 - left) for left in (WARNED_BEFORE_S + 1, 1, 0)]
    assert warnings[0] is None
    assert warnings[1].startswith("a certificate of --msp ends at 2001-09-09 01:46:40 UTC; give it")
    assert warnings[2].startswith("a certificate of --msp ended at ")


def test_clients_files_are_warned_of_once_a_day_and_shown(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(certificates, "_files", {})
    soon, later, gone = (tmp_path / name for name in ("soon.pem", "later.pem", "gone.pem"))
    soon.write_bytes(certificate("client")[2])  # of two days
    later.write_bytes(root(ends=20).pem)
    files = {"ssl.certificate.location": str(soon), "ssl.ca.location": str(later)}
    for _ in range(3):
        watch_files({**files, "ssl.key.location": str(gone), "other": None})
    assert [record.getMessage().split(" ends at ")[0] for record in caplog.records] == [
        f"a certificate of ssl.certificate.location ({soon})"
    ]
    assert {sample.labels: sample.value for sample in certificate_samples()} == {
        (name, path): end_of((tmp_path / path).read_bytes()) for name, path in files.items()
    }
    (told,) = of_certificates(certificates.ends(), time.time())
    assert f"ssl.certificate.location ({soon}) ends at" in told.says


def test_of_a_systems_authorities_the_last_end_counts_as_some_always_end():
    bundle = root(ends=7).pem * 20 + root(ends=30).pem
    assert end_of(bundle, authorities=True) == years(30).timestamp()
