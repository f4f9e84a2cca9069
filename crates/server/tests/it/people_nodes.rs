//! Several nodes on Kafka, Redis and etcd: a push through one node reaches a device at the gateway of another, whichever node owns its
//! inbox. When a node dies, another takes over its inboxes, and the devices that were connected to it are offline.

use serde_json::json;
use whimbrel_client::{Client, Kick, NewPush};

use super::device::{ConnectFrame, Device};
use super::hold_nodes::Shared;
use super::server::{Server, converse, eventually};
use super::server_life::get;
use super::services::free_address;

/// Enough that each of two nodes owns some of their partitions.
const USERS: usize = 24;

fn uid(user: usize) -> String {
    format!("node-{user}")
}

fn push(client: &Client, user: usize, text: &str) {
    eventually("a push is accepted", || converse(client.push(&uid(user), &NewPush::text(text))).is_ok());
}

fn online(client: &Client, count: usize) {
    let uids: Vec<String> = (0..USERS).map(uid).collect();
    eventually(&format!("{count} users are online"), || {
        let shown = converse(client.presence_of(&uids));
        shown.is_ok_and(|page| page.users.iter().filter(|user| user.online).count() == count)
    });
}

#[test]
fn a_device_is_reached_through_any_node_also_after_the_death_of_the_inbox_s_owner() {
    let Some(shared) = Shared::start() else { return };
    let addresses = [free_address(), free_address()];
    // Each node writes one of two shards, in its memory: a query of the other shard uses the internal port.
    let writers = format!("presence.writers={},{}", addresses[0], addresses[1]);
    let [first, second] = [0, 1].map(|index| {
        let internal = format!("internal_listen={}", addresses[index]);
        shared.node(index, &[internal, writers.clone(), "presence.engine=memory".to_owned()])
    });
    let mut devices: Vec<Device> =
        (0..USERS).map(|user| Device::connect(&first, &ConnectFrame::of(&uid(user), "web"))).collect();
    for (user, device) in devices.iter_mut().enumerate() {
        push(&second.client(), user, "through the other");
        assert_eq!(device.take(1), ["through the other"]);
    }
    online(&second.client(), USERS);
    let kick = Kick { reason: "enough".into(), ..Kick::default() };
    converse(second.client().kick(&uid(0), &kick)).unwrap();
    assert_eq!(devices[0].frame("kick")["reason"], json!("enough"));
    second.kill();
    for (user, device) in devices.iter_mut().enumerate().skip(1) {
        push(&first.client(), user, "after a death");
        assert_eq!(device.take(1), ["after a death"], "{}", uid(user));
    }
}

#[test]
fn devices_of_a_dead_node_are_offline_and_lose_no_message() {
    let Some(shared) = Shared::start() else { return };
    let addresses = [free_address(), free_address()];
    // The remaining node writes both shards.
    let writers = format!("presence.writers={},{}", addresses[0], addresses[0]);
    let [first, second] =
        [0, 1].map(|index| shared.node(index, &[format!("internal_listen={}", addresses[index]), writers.clone()]));
    let devices: Vec<Device> =
        (0..USERS).map(|user| Device::connect(&second, &ConnectFrame::of(&uid(user), "web"))).collect();
    online(&first.client(), USERS);
    second.kill();
    for user in 0..USERS {
        push(&first.client(), user, "meanwhile");
    }
    online(&first.client(), 0);
    drop(devices);
    for user in 0..USERS {
        let mut device = Device::connect_after_kill(&first, &ConnectFrame::of(&uid(user), "web"));
        assert_eq!(device.take(1), ["meanwhile"], "{}", uid(user));
    }
}

/// Roles on separate nodes: `receive`, `gateway`, `carrier` and the writer of presence.
#[test]
fn roles_on_separate_nodes_reach_users_together() {
    let Some(shared) = Shared::start() else { return };
    let addresses = [free_address(), free_address(), free_address()];
    let node = |index: usize, roles: &str| -> Server {
        let settings = [
            format!("roles={roles}"),
            format!("name=apart-{index}"),
            format!("internal_listen={}", addresses[index]),
            format!("presence.writers={}", addresses[2]),
            "presence.engine=memory".to_owned(),
        ];
        shared.node(index, &settings)
    };
    let door = node(0, "receive,center");
    let gateway = node(1, "gateway");
    // The inboxes have no owner yet, and presence has no writer: the node reports it, and a node without these roles is ready.
    let answer = get(&gateway, "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("have no owner yet"), "{answer}");
    eventually("the receiver is ready", || get(&door, "/readyz").starts_with("HTTP/1.1 200"));
    let _carrier = node(2, "carrier,presence,horn,worker");
    eventually("the gateway is ready", || get(&gateway, "/readyz").starts_with("HTTP/1.1 200"));
    let mut device = Device::connect(&gateway, &ConnectFrame::of(&uid(0), "web"));
    push(&door.client(), 0, "hello");
    assert_eq!(device.take(1), ["hello"]);
    eventually("presence shows it", || converse(door.client().presence(&uid(0))).is_ok_and(|shown| shown.online));
}
