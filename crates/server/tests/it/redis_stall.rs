//! A Redis that does not answer for some seconds: the server rejects publishes with an `Idempotency-Key` during the stall, and accepts them
//! at once afterwards.

use std::time::{Duration, Instant};

use whimbrel_client::{ClientError, NewMessage};

use super::server::{Server, converse, read_all, set};
use super::services::{Outage as _, OwnRedis, skip};

/// Longer than the timeout of a call to Redis.
const STALL: Duration = Duration::from_secs(6);
/// Much less than the lease of a claim, 1 min.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
const REPEAT_PAUSE: Duration = Duration::from_millis(100);

#[test]
fn a_publish_rejected_during_a_redis_stall_succeeds_when_repeated() {
    if skip(&["WHIMBREL_TEST_REDIS"]) {
        return;
    }
    let (folder, redis) = (tempfile::tempdir().unwrap(), OwnRedis::start());
    let receipts: Vec<String> = redis.settings().into_iter().filter(|setting| is_of_receipts(setting)).collect();
    let server = Server::start(folder.path(), &set(&receipts));
    let client = server.client();
    let message = |key: &str| NewMessage::text("x").idempotency_key(key);
    converse(client.publish("orders", &message("before"))).unwrap();

    redis.freeze();
    let stalled_at = Instant::now();
    let refused = converse(client.publish("orders", &message("during"))).unwrap_err();
    assert_eq!(status_of(&refused), 503, "{refused}");
    std::thread::sleep(STALL.saturating_sub(stalled_at.elapsed()));
    redis.go_on();

    let back_at = Instant::now();
    let first = loop {
        match converse(client.publish("orders", &message("during"))) {
            Ok(published) => break published,
            // Redis may take a moment to answer again; no publish holds the claim.
            Err(error) if status_of(&error) == 503 => {}
            Err(error) => panic!("{error}"),
        }
        assert!(back_at.elapsed() < SERVED_WITHIN, "still rejected");
        std::thread::sleep(REPEAT_PAUSE);
    };
    let again = converse(client.publish("orders", &message("during"))).unwrap();
    assert_eq!(first, again);
    let count: usize = (0..4).map(|partition| converse(read_all(&client, "orders", partition, 0)).0.len()).sum();
    assert_eq!(count, 2, "one message for each key");
}

fn is_of_receipts(setting: &str) -> bool {
    setting.starts_with("receipts.") || setting.starts_with("redis.")
}

fn status_of(error: &ClientError) -> u16 {
    match error {
        ClientError::Problem(problem) => problem.status,
        _ => 0,
    }
}
