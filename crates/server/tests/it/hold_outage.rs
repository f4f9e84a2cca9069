//! Outages: a store beside the log that is down, hangs or has lost its data; a full disk. Nothing is lost or duplicated, rejections have no
//! effect, and everything recovers by itself.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use whimbrel_client::{ClientError, Extension, NewMessage};

use super::hold_answer::millis_of;
use super::hold_crash::{Crew, number, settings};
use super::hold_settling::{Settling, make_topics};
use super::hold_work::now_ms;
use super::kafka_cluster::kafka_with_redis;
use super::random::Random;
use super::server::{PATIENCE, Server, converse, read_all, set};
use super::services::{Outage, OwnRedis, skip};

const OUTAGES_DEFAULT: u64 = 6;
const OPERATIONS_BETWEEN: u64 = 200;
const OUTAGE_MS_MAX: u64 = 4000;
const WORKERS: u64 = 6;
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which a due hold has certainly fired, without an outage.
const FIRED_WITHIN_MS: i64 = 500;

#[test]
fn holds_agree_with_a_model_while_their_store_stops_stalls_and_loses_data() {
    if skip(&["WHIMBREL_TEST_REDIS"]) {
        return;
    }
    let outages = number("WHIMBREL_HOLD_OUTAGES", OUTAGES_DEFAULT);
    let seed = number("WHIMBREL_HOLD_SEED", u64::from(std::process::id()));
    println!("a store that fails: seed {seed}, {outages} outages");
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);
    let mut redis = OwnRedis::start();
    let mut all = settings(&mut random);
    all.extend(redis.settings());
    // Receipts of a lost store are best effort; here every repeat must be detected.
    all.extend(
        ["receipts.engine=embedded", "redis.connect_timeout=300ms", "redis.response_timeout=700ms"].map(str::to_owned),
    );
    let server = Server::start(folder.path(), &set(&all));
    runtime.block_on(make_topics(&server.client(), WORKERS));
    let crew = Crew::begin(&runtime, WORKERS, ANSWER_WAIT, &mut random);
    crew.open(&[&server]);
    let mut settling = Settling::default();
    let mut earlier = redis.copy_of_disk();
    for outage in 0..outages {
        crew.wait_for(OPERATIONS_BETWEEN);
        match outage % 4 {
            0 => assert_eq!(redis.cli(&["flushall"]), "OK"),
            1 => {
                earlier = redis.copy_of_disk();
                kill_for_a_while(&mut redis, &mut random);
            }
            2 => freeze_for_a_while(&redis, &mut random),
            _ => redis.fall_back_to(&earlier),
        }
        runtime.block_on(settling.read_on(&server.client(), WORKERS));
    }
    crew.wait_for(OPERATIONS_BETWEEN);
    let operations = crew.operations.load(Ordering::Relaxed);
    let workers = crew.end(&runtime);
    let summary = runtime.block_on(settling.settle(&server.client(), workers));
    println!("a store that fails: seed {seed}, {operations} operations, {outages} outages\n{summary}");
}

fn kill_for_a_while(service: &mut dyn Outage, random: &mut Random) {
    service.kill();
    std::thread::sleep(Duration::from_millis(random.below(OUTAGE_MS_MAX)));
    service.start_again();
}

fn freeze_for_a_while(service: &dyn Outage, random: &mut Random) {
    service.freeze();
    std::thread::sleep(Duration::from_millis(random.below(OUTAGE_MS_MAX)));
    service.go_on();
}

#[test]
fn holds_agree_with_a_model_while_their_broker_stops_and_stalls() {
    let Some((mut kafka, _redis, engines)) = kafka_with_redis() else { return };
    let outages = number("WHIMBREL_HOLD_OUTAGES", OUTAGES_DEFAULT);
    let seed = number("WHIMBREL_HOLD_SEED", u64::from(std::process::id()));
    println!("a broker that fails: seed {seed}, {outages} outages");
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed);
    let mut all = settings(&mut random);
    all.extend(engines);
    // So short that some calls end without an answer.
    all.extend(
        ["kafka.message_timeout=2s", "kafka.transaction_timeout=3s", "kafka.request_timeout=2s"].map(str::to_owned),
    );
    let server = Server::start(folder.path(), &set(&all));
    runtime.block_on(make_topics(&server.client(), WORKERS));
    let crew = Crew::begin(&runtime, WORKERS, ANSWER_WAIT, &mut random);
    crew.open(&[&server]);
    for outage in 0..outages {
        crew.wait_for(OPERATIONS_BETWEEN);
        match outage % 2 {
            0 => freeze_for_a_while(&kafka, &mut random),
            _ => kill_for_a_while(&mut kafka, &mut random),
        }
    }
    crew.wait_for(OPERATIONS_BETWEEN);
    let operations = crew.operations.load(Ordering::Relaxed);
    let workers = crew.end(&runtime);
    let summary = runtime.block_on(Settling::default().settle(&server.client(), workers));
    println!("a broker that fails: seed {seed}, {operations} operations, {outages} outages\n{summary}");
}

#[test]
fn a_full_disk_rejects_holds_and_pending_ones_fire_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    converse(async {
        let client = server.client();
        client.hold("orders", &NewMessage::text("soon").delay("6s").id("soon")).await.unwrap();
        client.hold("orders", &NewMessage::text("later").delay("1h").id("later")).await.unwrap();
    });
    server.kill();

    let full = Server::start(folder.path(), &["--set", "log.disk_reserve_bytes=1TiB"]);
    converse(async {
        let client = full.client();
        // The log checks the disk periodically.
        let began = Instant::now();
        let refused = loop {
            match client.hold("elsewhere", &NewMessage::text("x").delay("1h")).await {
                Ok(_) => assert!(began.elapsed() < PATIENCE, "the disk is full and messages are accepted"),
                Err(error) => break error,
            }
        };
        let refused = [
            refused,
            client.withdraw("later").await.unwrap_err(),
            client.extend("later", &Extension::by("1h")).await.unwrap_err(),
        ];
        for error in refused {
            let ClientError::Problem(problem) = &error else { panic!("{error}") };
            assert_eq!(problem.status, 503, "{problem:?}");
        }
        let soon = client.look("soon").await.unwrap();
        let due = millis_of(&soon.due);
        assert!(now_ms() < due, "too late to check whether it fires");
        while now_ms() < due + FIRED_WITHIN_MS {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for id in ["soon", "later"] {
            assert_eq!(client.look(id).await.unwrap().state, "held", "{id}");
        }
    });
    full.kill();

    let server = Server::start(folder.path(), &[]);
    converse(async {
        let client = server.client();
        let began = Instant::now();
        while client.look("soon").await.unwrap().state != "fired" {
            assert!(began.elapsed() < PATIENCE, "it does not fire");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        assert_eq!(client.withdraw("later").await.unwrap().outcome, "withdrawn");
        let topic = client.topic("orders").await.unwrap();
        let mut messages = Vec::new();
        for partition in 0..topic.partitions {
            messages.extend(read_all(&client, "orders", partition, 0).await.0);
        }
        assert_eq!(messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["soon"]);
    });
}
