//! A writer's view of a gateway with late, lost and repeated packets, and packets of another incarnation.

use super::*;

const ONE: GatewayId = GatewayId { node: 1, incarnation: 10 };
const TWO: GatewayId = GatewayId { node: 1, incarnation: 20 };
const TIMES: TrackerTimes = TrackerTimes {
    ask_after_ms: 100,
    ask_again_ms: 300,
    snapshot_again_ms: 1_000,
    rest_ms: 2_000,
    silent_after_ms: 3_000,
    unseen_after_ms: 10_000,
};

fn packet(gateway: GatewayId, number: u64) -> Packet {
    Packet { gateway, address: "g".into(), number, news: vec![SessionChange::arrival(ONE, number)] }
}

fn snapshot(as_of: u64) -> GatewayReply {
    GatewayReply::Snapshot { as_of, sessions: Vec::new() }
}

/// A tracker with a snapshot of [`ONE`] as of that number, at time zero.
fn drawn(as_of: u64) -> GatewayTracker {
    let mut tracker = GatewayTracker::new(TIMES);
    let ask = the_ask(&tracker.living(&[(ONE, "g".into())], 0)).ask;
    let todo = tracker.answered(ask, ONE, snapshot(as_of), 0);
    assert_eq!(words(&todo), [format!("replace {as_of}")]);
    tracker
}

fn words(todo: &[TrackerEffect]) -> Vec<String> {
    let word = |todo: &TrackerEffect| match todo {
        TrackerEffect::Apply { number, .. } => format!("apply {number}"),
        TrackerEffect::Replace { as_of, .. } => format!("replace {as_of}"),
        TrackerEffect::Ask(QueryAttempt { wanted: QueryKind::Snapshot, attempt, .. }) => {
            format!("ask snapshot {attempt}")
        }
        TrackerEffect::Ask(QueryAttempt { wanted: QueryKind::Packets(numbers), attempt, .. }) => {
            format!("ask {numbers:?} {attempt}")
        }
        TrackerEffect::Void(gateway) => format!("void {}", gateway.incarnation),
    };
    todo.iter().map(word).collect()
}

fn the_ask(todo: &[TrackerEffect]) -> &QueryAttempt {
    let ask = todo.iter().find_map(|todo| match todo {
        TrackerEffect::Ask(question) => Some(question),
        _ => None,
    });
    ask.expect("no query")
}

const NOTHING: [String; 0] = [];

#[test]
fn a_new_writer_requests_a_snapshot_and_continues_from_it() {
    let mut tracker = GatewayTracker::new(TIMES);
    assert_eq!(words(&tracker.packet(packet(ONE, 7), 0)), NOTHING);
    let todo = tracker.living(&[(ONE, "g".into())], 0);
    assert_eq!(words(&todo), ["ask snapshot 0"]);
    assert_eq!(words(&tracker.packet(packet(ONE, 9), 0)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 8), 0)), NOTHING);
    assert_eq!(tracker.without_snapshot().collect::<Vec<_>>(), [ONE]);
    let todo = tracker.answered(the_ask(&todo).ask, ONE, snapshot(7), 10);
    assert_eq!(words(&todo), ["replace 7", "apply 8", "apply 9"]);
    assert_eq!(tracker.without_snapshot().count(), 0);
}

#[test]
fn nothing_is_returned_about_a_gateway_outside_the_cluster_view() {
    let mut tracker = GatewayTracker::new(TIMES);
    assert_eq!(words(&tracker.packet(packet(ONE, 1), 0)), NOTHING);
    assert_eq!(words(&tracker.tick(5_000)), NOTHING);
    assert_eq!(words(&tracker.tick(10_000)), NOTHING);
    assert_eq!(tracker.position_of(1), None);
}

#[test]
fn a_packet_that_arrives_on_both_paths_is_applied_once() {
    let mut tracker = drawn(0);
    assert_eq!(words(&tracker.packet(packet(ONE, 1), 0)), ["apply 1"]);
    assert_eq!(words(&tracker.packet(packet(ONE, 1), 0)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 3), 0)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 3), 0)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 2), 0)), ["apply 2", "apply 3"]);
    assert_eq!(tracker.counts.repeated, 2);
}

#[test]
fn a_gap_that_the_slower_path_closes_in_time_causes_no_query() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 2), 0);
    assert_eq!(words(&tracker.tick(99)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 1), 99)), ["apply 1", "apply 2"]);
    assert_eq!(words(&tracker.tick(2_000)), NOTHING);
}

#[test]
fn a_gap_causes_three_queries_and_then_a_request_for_a_snapshot() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 2), 0);
    tracker.packet(packet(ONE, 4), 0);
    assert_eq!(words(&tracker.tick(100)), ["ask [1, 3] 0"]);
    assert_eq!(words(&tracker.tick(399)), NOTHING);
    assert_eq!(words(&tracker.tick(400)), ["ask [1, 3] 1"]);
    assert_eq!(words(&tracker.tick(700)), ["ask [1, 3] 2"]);
    assert_eq!(words(&tracker.tick(1_000)), ["ask snapshot 0"]);
    assert_eq!(tracker.counts.unanswered, 1);
}

#[test]
fn requested_packets_close_the_gap() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 3), 0);
    let todo = tracker.tick(100);
    let answer = GatewayReply::Packets(vec![packet(ONE, 1), packet(ONE, 2)]);
    assert_eq!(words(&tracker.answered(the_ask(&todo).ask, ONE, answer, 150)), ["apply 1", "apply 2", "apply 3"]);
    assert_eq!(words(&tracker.tick(2_000)), NOTHING);
}

#[test]
fn an_answer_without_the_requested_packets_causes_a_request_for_a_snapshot() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 3), 0);
    let todo = tracker.tick(100);
    let answer = GatewayReply::Packets(vec![packet(ONE, 1)]);
    assert_eq!(words(&tracker.answered(the_ask(&todo).ask, ONE, answer, 150)), ["apply 1", "ask snapshot 0"]);
}

#[test]
fn an_outdated_snapshot_is_ignored() {
    let mut tracker = drawn(0);
    for number in 1..=5 {
        tracker.packet(packet(ONE, number), 0);
    }
    assert_eq!(words(&tracker.answered(99, ONE, snapshot(4), 0)), NOTHING);
    assert_eq!(tracker.position_of(1), Some((ONE, 5, 5)));
}

#[test]
fn too_many_missing_packets_cause_a_request_for_a_snapshot() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, ASKED_NUMBERS_MAX as u64 + 2), 0);
    assert_eq!(words(&tracker.tick(100)), ["ask snapshot 0"]);
}

#[test]
fn an_absurd_number_costs_one_snapshot_and_no_more() {
    let mut tracker = drawn(5);
    tracker.packet(packet(ONE, u64::MAX / 2), 0);
    let todo = tracker.tick(100);
    assert_eq!(words(&todo), ["ask snapshot 0"]);
    assert_eq!(words(&tracker.answered(the_ask(&todo).ask, ONE, snapshot(5), 100)), ["replace 5"]);
    assert_eq!(words(&tracker.tick(300)), NOTHING);
    assert_eq!(words(&tracker.packet(packet(ONE, 6), 320)), ["apply 6"]);
}

#[test]
fn after_a_pause_a_gateway_that_does_not_answer_is_queried_again() {
    let mut tracker = GatewayTracker::new(TIMES);
    assert_eq!(words(&tracker.living(&[(ONE, "g".into())], 0)), ["ask snapshot 0"]);
    assert_eq!(words(&tracker.tick(1_000)), ["ask snapshot 1"]);
    assert_eq!(words(&tracker.tick(2_000)), ["ask snapshot 2"]);
    assert_eq!(words(&tracker.tick(3_000)), NOTHING);
    assert_eq!(words(&tracker.tick(4_999)), NOTHING);
    assert_eq!(words(&tracker.tick(5_000)), ["ask snapshot 0"]);
}

#[test]
fn a_silent_gateway_is_asked_for_a_snapshot_while_its_packets_are_applied() {
    let mut tracker = drawn(3);
    assert_eq!(words(&tracker.tick(2_999)), NOTHING);
    assert_eq!(words(&tracker.tick(3_000)), ["ask snapshot 0"]);
    assert_eq!(words(&tracker.packet(packet(ONE, 4), 3_100)), ["apply 4"]);
    assert_eq!(words(&tracker.tick(5_000)), NOTHING);
}

#[test]
fn a_lost_lease_voids_a_gateway_at_once_and_for_good() {
    let mut tracker = drawn(3);
    assert_eq!(words(&tracker.living(&[], 10)), ["void 10"]);
    assert_eq!(words(&tracker.packet(packet(ONE, 4), 20)), NOTHING);
    assert_eq!(words(&tracker.answered(1, ONE, snapshot(9), 20)), NOTHING);
    assert_eq!(words(&tracker.living(&[(ONE, "g".into())], 30)), NOTHING);
    assert_eq!(tracker.counts.refused, 1);
}

#[test]
fn a_newer_incarnation_voids_the_older_one() {
    let mut tracker = drawn(3);
    assert_eq!(words(&tracker.packet(packet(TWO, 1), 10)), ["void 10"]);
    assert_eq!(words(&tracker.packet(packet(ONE, 4), 10)), NOTHING);
    assert_eq!(words(&tracker.living(&[(TWO, "g".into())], 10)), ["ask snapshot 0"]);
}

#[test]
fn an_answer_of_another_incarnation_voids_a_gateway_unless_that_has_not_started() {
    let mut tracker = GatewayTracker::new(TIMES);
    let ask = the_ask(&tracker.living(&[(ONE, "g".into())], 0)).ask;
    assert_eq!(words(&tracker.answered(ask, ONE, GatewayReply::OtherIncarnation(None), 10)), NOTHING);
    let earlier = GatewayId { node: 1, incarnation: 5 };
    assert_eq!(words(&tracker.answered(ask, ONE, GatewayReply::OtherIncarnation(Some(earlier)), 10)), NOTHING);
    assert_eq!(words(&tracker.tick(1_000)), ["ask snapshot 1"]);
    assert_eq!(words(&tracker.answered(ask, ONE, GatewayReply::OtherIncarnation(Some(TWO)), 1_010)), ["void 10"]);
}

#[test]
fn buffered_packets_are_bounded_and_dropped_ones_are_requested_later() {
    let mut tracker = drawn(0);
    let many = BUFFERED_PACKETS_MAX as u64 + 10;
    (2..=many).for_each(|number| drop(tracker.packet(packet(ONE, number), 0)));
    assert_eq!(tracker.buffered(), BUFFERED_PACKETS_MAX);
    assert_eq!(tracker.counts.overflowed, 9);
    let told = tracker.packet(packet(ONE, 1), 0);
    assert_eq!(told.len(), BUFFERED_PACKETS_MAX + 1);
    let todo = tracker.tick(100);
    assert!(matches!(&the_ask(&todo).wanted, QueryKind::Packets(numbers) if numbers.len() == 9));
}

#[test]
fn a_snapshot_is_as_fresh_as_its_request_and_a_packet_as_its_arrival() {
    let mut tracker = GatewayTracker::new(TIMES);
    assert_eq!(tracker.fresh_at(5), Some(5), "no gateway is live, and that is known");
    let ask = the_ask(&tracker.living(&[(ONE, "g".into())], 10)).ask;
    tracker.packet(packet(ONE, 1), 20);
    assert_eq!(tracker.fresh_at(50), None);
    tracker.answered(ask, ONE, snapshot(1), 50);
    assert_eq!(tracker.fresh_at(60), Some(10));
    tracker.packet(packet(ONE, 2), 70);
    assert_eq!(tracker.fresh_at(80), Some(70));
}

#[test]
fn a_snapshot_is_as_fresh_as_the_attempt_that_it_answers() {
    let mut tracker = GatewayTracker::new(TIMES);
    let first = the_ask(&tracker.living(&[(ONE, "g".into())], 0)).ask;
    let second = the_ask(&tracker.tick(1_000)).ask;
    assert_ne!(first, second);
    tracker.answered(first, ONE, snapshot(1), 1_100);
    assert_eq!(tracker.fresh_at(1_100), Some(0));

    let mut tracker = GatewayTracker::new(TIMES);
    tracker.living(&[(ONE, "g".into())], 0);
    let second = the_ask(&tracker.tick(1_000)).ask;
    tracker.answered(second, ONE, snapshot(1), 1_100);
    assert_eq!(tracker.fresh_at(1_100), Some(1_000));
}

#[test]
fn a_late_answer_does_not_advance_the_freshness() {
    let mut tracker = GatewayTracker::new(TIMES);
    let early = the_ask(&tracker.living(&[(ONE, "g".into())], 0)).ask;
    tracker.tick(1_000);
    tracker.tick(2_000);
    tracker.tick(3_000);
    tracker.tick(5_000);
    tracker.answered(early, ONE, snapshot(1), 5_100);
    assert_eq!(tracker.fresh_at(5_100), None);
    tracker.packet(packet(ONE, 2), 5_200);
    assert_eq!(tracker.fresh_at(5_200), Some(5_200));
}

#[test]
fn a_packet_behind_a_gap_does_not_advance_the_freshness_until_the_gap_closes() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 1), 10);
    tracker.packet(packet(ONE, 3), 30);
    assert_eq!(tracker.fresh_at(40), Some(10));
    let ask = the_ask(&tracker.tick(200)).ask;
    // The missing packet may be older; the one behind it arrived at 30.
    tracker.answered(ask, ONE, GatewayReply::Packets(vec![packet(ONE, 2)]), 300);
    assert_eq!(tracker.fresh_at(300), Some(30));
}

#[test]
fn a_packet_that_closes_a_gap_late_does_not_advance_the_freshness() {
    let mut tracker = drawn(0);
    tracker.packet(packet(ONE, 2), 20);
    tracker.packet(packet(ONE, 1), 90);
    assert_eq!(tracker.fresh_at(90), Some(20));
}

#[test]
fn freshness_needs_one_working_path_and_ignores_repeats() {
    let mut tracker = drawn(0);
    for number in 1..=5 {
        tracker.packet(packet(ONE, number), number * 1_000);
        assert_eq!(tracker.fresh_at(number * 1_000), Some(number * 1_000));
    }
    tracker.packet(packet(ONE, 5), 5_900);
    assert_eq!(tracker.fresh_at(6_000), Some(5_000));
}

#[test]
fn a_shard_is_as_fresh_as_the_least_fresh_gateway_with_a_lease() {
    let other = GatewayId { node: 2, incarnation: 11 };
    let both = [(ONE, "g".into()), (other, "h".into())];
    let mut tracker = drawn(0);
    let ask = the_ask(&tracker.living(&both, 100)).ask;
    assert_eq!(tracker.fresh_at(100), None, "one of them has no snapshot");
    tracker.answered(ask, other, snapshot(0), 110);
    tracker.packet(packet(ONE, 1), 4_000);
    assert_eq!(tracker.fresh_at(4_000), Some(100));
    assert_eq!(tracker.stale_gateways(100).count(), 0);
    assert_eq!(tracker.stale_gateways(1_000).collect::<Vec<_>>(), [other]);
    tracker.living(&both[..1], 4_100);
    assert_eq!(tracker.fresh_at(4_100), Some(4_000));
    assert_eq!(tracker.stale_gateways(4_000).count(), 0);
}

#[test]
fn a_gateway_that_only_repeats_old_packets_is_asked_for_a_snapshot() {
    let mut tracker = drawn(3);
    tracker.packet(packet(ONE, 3), 2_900);
    let todo = tracker.tick(3_000);
    assert_eq!(words(&todo), ["ask snapshot 0"]);
    // The snapshot shows that nothing has happened meanwhile.
    assert_eq!(words(&tracker.answered(the_ask(&todo).ask, ONE, snapshot(3), 3_100)), ["replace 3"]);
    assert_eq!(tracker.fresh_at(3_100), Some(3_000));
}
