"""Which normalised URLs are below the prefixes of `txn.check_urls`: a table of allowed and refused URLs."""

import pytest

from duolog.bridge.config.check_urls import BadUrl, CheckUrls

PREFIXES = CheckUrls("http://shop.example/ok https://pay.example:8443/checks/ http://[::1]:9000/")


@pytest.mark.parametrize(
    "url",
    [
        "http://shop.example/ok",
        "http://shop.example/ok/",
        "http://SHOP.example:80/ok/a/b?id=7",
        "http://shop.example/ok/./a",
        "http://shop.example/ok/a/../b",
        "http://shop.example/%6fk/a",
        "http://shop.example/ok/a%20b",
        "https://pay.example:8443/checks/1",
        "http://[::1]:9000/any",
    ],
)
def test_url_below_a_prefix_is_allowed(url: str) -> None:
    assert PREFIXES.allow(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://shop.example/ok/../admin/delete",
        "http://shop.example/ok/%2e%2e/secret",
        "http://shop.example/ok/.%2E/secret",
        "http://shop.example/ok/..%2fsecret",
        "http://shop.example/ok/%252e%252e/secret",
        "http://shop.example/ok/%252fsecret",
        "http://shop.example/ok/..;/secret",
        "http://shop.example/ok/..;a=b/secret",
        "http://shop.example/ok/..%3b/secret",
        "http://shop.example/ok/..%5csecret",
        "http://shop.example/ok/%c0%ae%c0%ae/secret",
        "http://shop.example/ok\\..\\secret",
        "http://shop.example/okay",
        "http://shop.example//ok/a",
        "http://shop.example/OK/a",
        "https://shop.example/ok/a",
        "http://shop.example:8080/ok/a",
        "http://shop.example.evil/ok/a",
        "http://shop.example@evil.example/ok/a",
        "http://user:pass@shop.example/ok/a",
        "http://@shop.example/ok/a",
        "http://shop.example\\@evil.example/ok/",
        "http://evil.example#shop.example/ok/a",
        "http://shop.example/ok/#a",
        "http://shop.example/ok/%0d%0aHost:evil",
        "http://shop.example/ok/\r\nHost: evil",
        "http://shop.example/ok/\ta",
        "http://shop.example/ok/a b",
        " http://shop.example/ok/",
        "http://shop.example/ok/\u2028",
        "http://\uff53hop.example/ok/",
        "https://pay.example:8443/checks",
        "https://pay.example:8443/checks/..",
        "http://[::1]:9001/any",
        "http://shop.example:99999/ok",
        "file:///ok",
        "//shop.example/ok",
        "/ok",
        "",
    ],
)
def test_url_elsewhere_is_not_allowed_however_it_is_written(url: str) -> None:
    assert not PREFIXES.allow(url)
    assert not CheckUrls("").allow(url)


@pytest.mark.parametrize("prefix", ["http://a/?x=1", "http://a", "http://u@a/", "http://a/#b", "http://a/%2f", "a/b"])
def test_prefix_that_is_ambiguous_is_refused(prefix: str) -> None:
    with pytest.raises(BadUrl):
        CheckUrls(prefix)
