//! Providers that send invalid responses, close the connection, or do not respond at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use whimbrel_egress::horn::DeviceOutcome;
use whimbrel_model::ports::Provider as By;
use whimbrel_model::push::Notice;

use crate::bench::{delay_of, device, notice, pager_at, reason_of};

/// A server that answers every request with these bytes and closes the connection. Returns its URL.
async fn saying(answer: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let said = answer();
            let mut asked = [0; 4_096];
            // This server ignores clients that disconnect.
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(&said).await;
        }
    });
    url
}

#[tokio::test]
async fn an_invalid_or_truncated_response_is_a_temporary_failure() {
    for said in
        ["", "SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1 200 O", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 99999 ?\r\n\r\n"]
    {
        let url = saying(move || said.into()).await;
        let got = pager_at(&url).only_outcome(&notice("m1")).await;
        assert_eq!(delay_of(&got), None, "{said:?}");
        assert!(!reason_of(&got).is_empty(), "{said:?}");
    }
}

#[tokio::test]
async fn a_response_with_a_truncated_body_is_classified_by_its_status() {
    for (status, word) in [("200 OK", "sent"), ("410 Gone", "gone"), ("400 Bad Request", "refused")] {
        let url = saying(move || format!("HTTP/1.1 {status}\r\ncontent-length: 100\r\n\r\nhalf").into()).await;
        assert_eq!(pager_at(&url).only_outcome(&notice("m1")).await.word(), word);
    }
}

#[tokio::test]
async fn a_past_retry_after_is_zero_and_an_invalid_one_is_ignored() {
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (text, wait) in [(past, Some(Duration::ZERO)), ("soon", None), ("-5", None), ("", None)] {
        let url =
            saying(move || format!("HTTP/1.1 503 x\r\nretry-after: {text}\r\ncontent-length: 0\r\n\r\n").into()).await;
        assert_eq!(delay_of(&pager_at(&url).only_outcome(&notice("m1")).await), wait, "{text}");
    }
}

#[tokio::test]
async fn an_unresponsive_endpoint_is_paused_and_others_are_not() {
    let (is_up, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (up, count) = (Arc::clone(&is_up), Arc::clone(&asked));
    let url = saying(move || {
        count.fetch_add(1, Ordering::SeqCst);
        if up.load(Ordering::SeqCst) { "HTTP/1.1 204 x\r\n\r\n".into() } else { Vec::new() }
    })
    .await;
    let bench = pager_at(&url);
    let of = |number: usize| notice(&format!("m{number}"));
    for number in 0..8 {
        assert_eq!(delay_of(&bench.only_outcome(&of(number)).await), None);
    }
    assert_eq!(delay_of(&bench.only_outcome(&of(8)).await), Some(Duration::from_secs(10)));
    assert_eq!(asked.load(Ordering::SeqCst), 8, "it was not called again");

    let other = saying(|| "HTTP/1.1 204 x\r\n\r\n".into()).await;
    bench.devices.add("u2", device("pager", By::Http, &other));
    assert_eq!(bench.only_outcome(&Notice { uid: "u2".to_owned(), ..of(9) }).await, DeviceOutcome::Sent);

    is_up.store(true, Ordering::SeqCst);
    bench.pass(Duration::from_secs(11));
    assert_eq!(bench.only_outcome(&of(8)).await, DeviceOutcome::Sent);
}
