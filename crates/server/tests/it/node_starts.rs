//! Starts of several nodes on Kafka, Redis and etcd: together on an empty catalogue, beside a dead node, and starts that must fail.

use whimbrel_client::{HoldFilter, NewMessage};

use super::hold_nodes::Shared;
use super::server::{Server, converse, eventually, may_pass};
use super::server_life::get;
use super::services::free_address;

/// Waits for a process that must not start, and returns its error.
fn refusal(mut server: Server) -> String {
    let status = server.wait();
    let said = server.stderr();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

#[test]
fn nodes_that_start_together_on_an_empty_catalogue_create_one_topic() {
    let Some(shared) = Shared::start() else { return };
    let mut nodes = [0, 1, 2].map(|index| shared.spawn(index, &[]));
    nodes.iter_mut().for_each(Server::wait_for_banner);
    // A topic that every node creates with its first publish.
    let publishers = nodes.each_ref().map(|node| {
        let client = node.client();
        // On a busy machine Kafka may take longer than `kafka.request_timeout` to create the topic.
        std::thread::spawn(move || {
            eventually("the publish is accepted", || {
                match converse(client.publish("orders", &NewMessage::text("x"))) {
                    Ok(_) => true,
                    Err(error) if may_pass(&error) => false,
                    Err(error) => panic!("{error}"),
                }
            });
        })
    });
    for publisher in publishers {
        publisher.join().unwrap();
    }
    let numbers = nodes.each_ref().map(|node| converse(node.client().topic("orders")).unwrap().number);
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}

#[test]
fn a_node_beside_a_dead_writer_of_presence_is_ready_and_reports_stale_shards() {
    let Some(shared) = Shared::start() else { return };
    let addresses = [free_address(), free_address()];
    let writers = format!("presence.writers={},{}", addresses[0], addresses[1]);
    let node = |index: usize| {
        let internal = format!("internal_listen={}", addresses[index]);
        shared.node(index, &[internal, writers.clone(), "presence.engine=memory".to_owned()])
    };
    let (first, second) = (node(0), node(1));
    eventually("both are ready", || {
        [&first, &second].iter().all(|node| get(node, "/readyz").starts_with("HTTP/1.1 200"))
    });
    second.kill();
    assert!(first.end().success());
    let first = node(0);
    eventually("it is ready without the dead one", || get(&first, "/readyz").starts_with("HTTP/1.1 200"));
    let answer = get(&first, "/readyz");
    assert!(answer.contains("1 of 2 shards of presence are stale, written by other processes: 1"), "{answer}");
    eventually("the metric reports it", || get(&first, "/metrics").contains("whimbrel_presence_remote_stale_shards 1"));
    let _second = node(1);
    eventually("the warning is over", || get(&first, "/readyz").contains("{\"ready\":true}"));
}

#[test]
fn a_node_with_another_internal_key_cannot_start() {
    let Some(shared) = Shared::start() else { return };
    let key = |key: &str| format!("internal_key={key}");
    let first = shared.node(0, &[key("the right secret")]);

    let said = refusal(shared.spawn(1, &[key("another secret")]));
    assert!(said.contains("the `internal_key` of this node differs from that of node 0"), "{said}");
    assert!(!said.contains("another secret") && !said.contains("the right secret"), "{said}");
    // The rejected node owns no shard: every shard answers.
    converse(first.client().count_holds(&HoldFilter::default())).unwrap();

    let second = shared.node(1, &[key("the right secret")]);
    assert!(first.end().success() && second.end().success());
    // The test changes the key while no node runs.
    let changed = [0, 1].map(|node| shared.node(node, &[key("a new secret")]));
    converse(changed[1].client().count_holds(&HoldFilter::default())).unwrap();
}

#[test]
fn a_second_process_on_a_data_folder_cannot_start_even_if_every_engine_is_shared() {
    let Some(shared) = Shared::start() else { return };
    let first = shared.node(0, &[]);
    let said = refusal(shared.spawn(0, &[]));
    assert!(said.contains("in use by another process"), "{said}");
    assert!(first.end().success());
    shared.node(0, &[]);
}
