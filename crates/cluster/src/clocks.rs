//! Checks whether this node's wall clock is near enough to those of the other centers.
//!
//! A hold is due by its owner's clock. If shards move between nodes whose clocks differ, holds fire early or late by the difference. So a
//! node with a deviating clock owns no shards. Of two groups of nodes that disagree, the smaller one yields. Of two equal groups, the one
//! without the lowest node number yields. So one group always stays, and a new node yields to existing members.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use whimbrel_model::ports::PortFuture;
use whimbrel_model::{Clock, Timestamp};

use super::cluster_view::ClusterView;

pub trait PeerClock: Send + Sync {
    fn read_clock<'a>(&'a self, address: &'a str) -> PortFuture<'a, Result<Timestamp, String>>;
}

/// How far another node's clock is ahead of this one's (negative: behind), and the round-trip time, which bounds the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerClockReading {
    pub node: u16,
    pub ahead_ms: i64,
    pub round_trip_ms: i64,
}

/// The clock of this node deviates from those of too many other nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node's clock is {} ms {} that of node {node}, the limit is {allowed_ms} ms: synchronize the clocks, with NTP for example",
    ahead_ms.abs(),
    if *ahead_ms > 0 { "behind" } else { "ahead of" }
)]
pub struct ClocksApart {
    pub node: u16,
    pub ahead_ms: i64,
    pub allowed_ms: i64,
}

/// Whether this node must yield. `me` is `None` for a node that is not a center yet.
pub(super) fn check_agreement(
    me: Option<u16>,
    readings: &[PeerClockReading],
    allowed: Duration,
) -> Result<(), ClocksApart> {
    let allowed_ms = i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX);
    let is_apart = |reading: &&PeerClockReading| {
        reading.ahead_ms.saturating_abs() > allowed_ms.saturating_add(reading.round_trip_ms)
    };
    let (apart, near): (Vec<&PeerClockReading>, Vec<&PeerClockReading>) = readings.iter().partition(is_apart);
    let Some(furthest) = apart.iter().max_by_key(|reading| reading.ahead_ms.saturating_abs()) else { return Ok(()) };
    let lowest = |group: &[&PeerClockReading]| group.iter().map(|reading| reading.node).min();
    // A node that is not a center yet ranks last.
    let mine = [lowest(&near), me].into_iter().flatten().min();
    let is_older = match (mine, lowest(&apart)) {
        (Some(mine), Some(theirs)) => mine < theirs,
        (mine, _) => mine.is_some(),
    };
    let group_size = near.len() + 1;
    if group_size > apart.len() || (group_size == apart.len() && is_older) {
        return Ok(());
    }
    Err(ClocksApart { node: furthest.node, ahead_ms: furthest.ahead_ms, allowed_ms })
}

/// Reads the clocks of the other centers. Nodes that do not answer are skipped.
pub(super) async fn read(
    view: &ClusterView,
    me: Option<u16>,
    asking: &dyn PeerClock,
    clock: &dyn Clock,
) -> Vec<PeerClockReading> {
    let others = view.centers().filter(|node| Some(node.number) != me);
    let readings = others.map(|node| async {
        let (began, asked_at) = (Instant::now(), clock.now());
        let theirs = asking.read_clock(&node.member.address).await.ok()?;
        let round_trip_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let ours = asked_at.as_millis().saturating_add(round_trip_ms / 2);
        Some(PeerClockReading { node: node.number, ahead_ms: theirs.as_millis().saturating_sub(ours), round_trip_ms })
    });
    join_all(readings).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_millis(500);

    fn reading(node: u16, ahead_ms: i64) -> PeerClockReading {
        PeerClockReading { node, ahead_ms, round_trip_ms: 10 }
    }

    #[test]
    fn a_single_node_need_not_yield() {
        assert_eq!(check_agreement(None, &[], ALLOWED), Ok(()));
    }

    #[test]
    fn a_difference_within_the_round_trip_time_is_tolerated() {
        assert_eq!(check_agreement(None, &[reading(1, 510)], ALLOWED), Ok(()));
        assert_eq!(check_agreement(None, &[reading(1, -510)], ALLOWED), Ok(()));
        assert!(check_agreement(None, &[reading(1, 511)], ALLOWED).is_err());
        assert!(check_agreement(None, &[reading(1, -511)], ALLOWED).is_err());
    }

    #[test]
    fn of_two_nodes_with_different_clocks_exactly_one_yields() {
        assert_eq!(check_agreement(Some(3), &[reading(5, 2000)], ALLOWED), Ok(()));
        assert!(check_agreement(Some(5), &[reading(3, -2000)], ALLOWED).is_err());
    }

    #[test]
    fn a_node_that_deviates_from_most_others_yields_whatever_its_number() {
        assert!(check_agreement(Some(0), &[reading(1, 2000), reading(2, 2010)], ALLOWED).is_err());
        assert_eq!(check_agreement(Some(1), &[reading(0, -2000), reading(2, 10)], ALLOWED), Ok(()));
    }

    #[test]
    fn of_two_equal_groups_the_one_with_the_lowest_number_stays() {
        let apart = |nodes: [u16; 2], near: u16| [reading(nodes[0], 2000), reading(nodes[1], 2000), reading(near, 0)];
        assert_eq!(check_agreement(Some(4), &apart([2, 3], 1), ALLOWED), Ok(()));
        assert!(check_agreement(Some(2), &apart([1, 4], 3), ALLOWED).is_err());
    }

    #[test]
    fn a_new_node_yields_to_a_member() {
        let error = check_agreement(None, &[reading(4095, -700)], ALLOWED).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this node's clock is 700 ms ahead of that of node 4095, the limit is 500 ms: synchronize the clocks, with NTP for example"
        );
    }
}
