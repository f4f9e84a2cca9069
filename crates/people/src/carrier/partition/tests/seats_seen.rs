//! A seat's age counts from the end of its last session, however long that session was.

use std::sync::Arc;

use whimbrel_model::push::{PushKick, PushTask};

use super::{GATEWAY, World, uid};
use crate::carrier::partition::{CarrierInput, CarrierRecord};

const A_DAY: i64 = 86_400_000;
/// Longer than a seat is kept.
const LONG: i64 = 31 * A_DAY;

/// A phone with a session longer than `keep_seats`.
fn phone_there_for_long() -> World {
    let mut world = World::new();
    world.arrive(1, "u", "ios", None);
    world.step(CarrierInput::LiveGateways(Arc::new(vec![GATEWAY])));
    world.wait(LONG);
    world
}

/// A browser arrives and acknowledges a push. The phone still gets that push when it returns.
fn is_kept_for_the_phone(mut world: World, why: &str) {
    world.wait(A_DAY);
    world.arrive(2, "u", "web", None);
    world.push(&["u"], "a");
    let seq = world.log.len() as u64;
    world.ack(2, "u", seq);
    world.wait(A_DAY);
    world.told(3);
    world.arrive(3, "u", "ios", None);
    assert!(world.told(3).iter().any(|told| told.starts_with(&format!("a {seq}"))), "{why}");
}

#[test]
fn the_seat_of_a_long_session_is_kept_however_the_session_ends() {
    type SessionEnd = fn(&mut World);
    let ends: [(&str, SessionEnd); 4] = [
        ("its gateway dies", |world| world.step(CarrierInput::LiveGateways(Arc::new(Vec::new())))),
        ("its gateway is unreachable", |world| world.step(CarrierInput::GatewayGone(GATEWAY))),
        ("it is kicked", |world| {
            let kick = PushKick { uid: "u".into(), platform: None, session: None, reason: "bye".into() };
            world.append(&PushTask::Kick(kick), "");
        }),
        ("it stops acknowledging", |world| {
            world.push(&["u"], "x");
            for pause in [1_000, 5_000, 30_000] {
                world.wait(10_000);
                let Some(CarrierRecord::Hold { task, .. }) = world.outbound.pop() else { panic!("a retry is held") };
                world.wait(pause);
                world.append(&task, "");
            }
            world.wait(10_000);
            assert_eq!(world.core.counts.no_acks, 1);
        }),
    ];
    for (why, end) in ends {
        let mut world = phone_there_for_long();
        end(&mut world);
        assert_eq!(world.core.sessions(), 0, "{why}");
        is_kept_for_the_phone(world, why);
    }
}

#[test]
fn the_seat_of_a_long_session_is_kept_when_carrier_and_gateway_die_together() {
    for keeps_it_seen in ["its acknowledgements", "its user's other device", "an upkeep run"] {
        let mut world = phone_there_for_long();
        match keeps_it_seen {
            "its acknowledgements" => {
                world.push(&["u"], "x");
                world.ack(1, "u", 1);
            }
            "its user's other device" => world.arrive(9, "u", "web", None),
            _ => world.step(CarrierInput::Reclaimable(vec![uid("u")])),
        }
        world.wait(1_000);
        world.take_over();
        is_kept_for_the_phone(world, keeps_it_seen);
    }
}

#[test]
fn acknowledgements_update_the_reclaim_time_only_every_few_days() {
    let mut world = World::new();
    world.arrive(1, "u", "ios", None);
    world.push(&["u"], "x");
    world.ack(1, "u", 1);
    let seen_at = |world: &World| world.core.users.get("u").unwrap().state.seats[0].seen_at.as_millis();
    world.wait(A_DAY);
    world.push(&["u"], "y");
    world.ack(1, "u", 2);
    assert_eq!(seen_at(&world), 0, "the store keeps the earlier time");
    world.wait(10 * A_DAY);
    world.push(&["u"], "z");
    world.ack(1, "u", 3);
    assert_eq!(seen_at(&world), 11 * A_DAY);
}
