//! A Redis that loses data: the server reports every loss.

use super::server::{Server, converse, eventually, set};
use super::services::{OwnRedis, skip};
use whimbrel_client::{Position, ReadFrom};

fn losses(server: &Server) -> Vec<String> {
    let from = ReadFrom { partition: 0, position: Position::Earliest, limit: Some(1000), wait: None };
    let events = converse(server.client().read("_events", &from)).unwrap().messages;
    let payloads = events.into_iter().filter_map(|event| event.payload);
    payloads.filter(|event| event.contains("\"redis_data_lost\"")).collect()
}

#[test]
fn an_emptied_redis_is_reported_with_the_lost_data() {
    if skip(&["WHIMBREL_TEST_REDIS"]) {
        return;
    }
    let (folder, redis) = (tempfile::tempdir().unwrap(), OwnRedis::start());
    let settings = redis.settings();
    let arguments = set(&settings);
    let server = Server::start(folder.path(), &arguments);
    eventually("the markers are written", || !redis.cli(&["--scan", "--pattern", "*:marker"]).is_empty());
    assert_eq!(losses(&server), Vec::<String>::new(), "nothing was lost yet");
    assert_eq!(redis.cli(&["flushall"]), "OK");
    eventually("the loss is reported", || !losses(&server).is_empty());
    let loss = losses(&server).remove(0);
    assert!(loss.contains("receipts, progress, devices"), "{loss}");
    server.end();

    assert_eq!(redis.cli(&["flushall"]), "OK");
    let server = Server::start(folder.path(), &arguments);
    eventually("a loss between two runs is reported", || losses(&server).len() == 2);
}
