//! Requests that RFC 9112 and RFC 6455 forbid, byte by byte.

use super::server::Server;

fn status_of(server: &Server, request: &str) -> String {
    let answer = server.exchange(request);
    answer.split(' ').nth(1).unwrap_or(&answer).to_owned()
}

#[test]
fn a_request_has_one_valid_host() {
    let server = Server::fresh(&[]);
    let get = |hosts: &str| format!("GET /v1/topics HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
    assert_eq!(status_of(&server, &get("host: localhost\r\n")), "200");
    for hosts in ["", "host: localhost\r\nhost: localhost\r\n", "host: a b\r\n", "host: evil.example/x\r\n"] {
        let answer = server.exchange(&get(hosts));
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"bad_request\""), "{hosts:?}: {answer}");
    }
    assert_eq!(status_of(&server, "GET /healthz HTTP/1.0\r\n\r\n"), "200");
}

#[test]
fn only_the_transfer_coding_chunked_is_accepted() {
    let server = Server::fresh(&[]);
    let post = |coding: &str| {
        let head = "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        format!("{head}transfer-encoding: {coding}\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    };
    assert_eq!(status_of(&server, &post("chunked")), "201");
    assert_eq!(status_of(&server, &post("gzip, chunked")), "501");
    assert_eq!(status_of(&server, &post("chunked, chunked")), "400");
}

#[test]
fn a_websocket_has_one_key() {
    let server = Server::fresh(&[]);
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let head = "GET /v1/connect HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n";
    let answer = server.exchange(&format!("{head}{key}{key}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[test]
fn requests_with_the_maximum_number_of_headers_are_accepted() {
    let server = Server::fresh(&["--set", "limits.headers=1024"]);
    let post = |count: usize| {
        let headers: String = (0..count).map(|n| format!("whimbrel-header-h{n}: v\r\n")).collect();
        let head = "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n";
        format!("{head}{headers}\r\nhi")
    };
    assert_eq!(status_of(&server, &post(200)), "201");
    assert_eq!(status_of(&server, &post(1024)), "201");
    let refused = server.exchange(&post(1030));
    assert!(refused.starts_with("HTTP/1.1 422") && refused.contains("\"too_many_headers\""), "{refused}");
}

#[test]
fn a_request_with_too_many_headers_gets_the_limit() {
    let server = Server::fresh(&[]);
    let get = |count: usize| {
        let headers: String = (0..count).map(|n| format!("x-{n}: v\r\n")).collect();
        format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
    };
    assert_eq!(status_of(&server, &get(98)), "200");
    let refused = server.exchange(&get(198));
    assert!(refused.starts_with("HTTP/1.1 431") && refused.contains("\"too_many_request_headers\""), "{refused}");
    assert!(refused.contains("has 200 headers; the limit is 100"), "{refused}");
    // The HTTP library does not parse this many.
    assert_eq!(status_of(&server, &get(1_000)), "431");
}
