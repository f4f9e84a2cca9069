//! Whether this node's wall clock is near enough to those of the other centers.
//!
//! A hold is due by its owner's clock. Where shards move between nodes whose clocks are apart, holds fire early or late by
//! the difference; so a node whose clock is apart owns nothing. Of two groups that do not agree the smaller one yields, and
//! of two equal ones the one without the lowest node number: one group always stays, and a newcomer yields to who is there.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use whimbrel_model::ports::PortFuture;
use whimbrel_model::{Clock, Timestamp};

use super::sight::View;

/// Asks other nodes what time it is there.
pub trait AskClock: Send + Sync {
    fn ask_clock<'a>(&'a self, address: &'a str) -> PortFuture<'a, Result<Timestamp, String>>;
}

/// How far another node's clock is ahead of this one's (or behind, where negative), and how exactly that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub node: u16,
    pub ahead_ms: i64,
    pub round_trip_ms: i64,
}

/// The clocks of this node and of too many others are further apart than is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node's clock is {} ms {} that of node {node}, and {allowed_ms} ms are allowed: set the clocks, by NTP or the like",
    ahead_ms.abs(),
    if *ahead_ms > 0 { "behind" } else { "ahead of" }
)]
pub struct ClocksApart {
    pub node: u16,
    pub ahead_ms: i64,
    pub allowed_ms: i64,
}

/// Whether this node must yield. `me` is `None` for one that does not take part yet.
pub(super) fn judge(me: Option<u16>, readings: &[Reading], allowed: Duration) -> Result<(), ClocksApart> {
    let allowed_ms = i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX);
    let is_apart =
        |reading: &&Reading| reading.ahead_ms.saturating_abs() > allowed_ms.saturating_add(reading.round_trip_ms);
    let (apart, near): (Vec<&Reading>, Vec<&Reading>) = readings.iter().partition(is_apart);
    let Some(furthest) = apart.iter().max_by_key(|reading| reading.ahead_ms.saturating_abs()) else { return Ok(()) };
    let lowest = |group: &[&Reading]| group.iter().map(|reading| reading.node).min();
    // Who does not take part yet counts after everybody.
    let mine = [lowest(&near), me].into_iter().flatten().min();
    let is_older = match (mine, lowest(&apart)) {
        (Some(mine), Some(theirs)) => mine < theirs,
        (mine, _) => mine.is_some(),
    };
    let standing = near.len() + 1;
    if standing > apart.len() || (standing == apart.len() && is_older) {
        return Ok(());
    }
    Err(ClocksApart { node: furthest.node, ahead_ms: furthest.ahead_ms, allowed_ms })
}

/// Reads the clocks of the other centers. Who does not answer is left out.
pub(super) async fn read(view: &View, me: Option<u16>, asking: &dyn AskClock, clock: &dyn Clock) -> Vec<Reading> {
    let others = view.centers().filter(|node| Some(node.number) != me);
    let readings = others.map(|node| async {
        let (began, asked_at) = (Instant::now(), clock.now());
        let theirs = asking.ask_clock(&node.member.address).await.ok()?;
        let round_trip_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let ours = asked_at.as_millis().saturating_add(round_trip_ms / 2);
        Some(Reading { node: node.number, ahead_ms: theirs.as_millis().saturating_sub(ours), round_trip_ms })
    });
    join_all(readings).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_millis(500);

    fn reading(node: u16, ahead_ms: i64) -> Reading {
        Reading { node, ahead_ms, round_trip_ms: 10 }
    }

    #[test]
    fn a_node_alone_is_right() {
        assert_eq!(judge(None, &[], ALLOWED), Ok(()));
    }

    #[test]
    fn what_the_round_trip_may_explain_is_not_held_against_a_node() {
        assert_eq!(judge(None, &[reading(1, 510)], ALLOWED), Ok(()));
        assert_eq!(judge(None, &[reading(1, -510)], ALLOWED), Ok(()));
        assert!(judge(None, &[reading(1, 511)], ALLOWED).is_err());
        assert!(judge(None, &[reading(1, -511)], ALLOWED).is_err());
    }

    #[test]
    fn of_two_that_are_apart_exactly_one_yields() {
        assert_eq!(judge(Some(3), &[reading(5, 2000)], ALLOWED), Ok(()));
        assert!(judge(Some(5), &[reading(3, -2000)], ALLOWED).is_err());
    }

    #[test]
    fn the_one_that_is_apart_from_many_yields_whatever_its_number() {
        assert!(judge(Some(0), &[reading(1, 2000), reading(2, 2010)], ALLOWED).is_err());
        assert_eq!(judge(Some(1), &[reading(0, -2000), reading(2, 10)], ALLOWED), Ok(()));
    }

    #[test]
    fn of_two_equal_groups_the_one_with_the_lowest_number_stays() {
        let apart = |nodes: [u16; 2], near: u16| [reading(nodes[0], 2000), reading(nodes[1], 2000), reading(near, 0)];
        assert_eq!(judge(Some(4), &apart([2, 3], 1), ALLOWED), Ok(()));
        assert!(judge(Some(2), &apart([1, 4], 3), ALLOWED).is_err());
    }

    #[test]
    fn a_newcomer_yields_to_one_that_is_there() {
        let error = judge(None, &[reading(4095, -700)], ALLOWED).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this node's clock is 700 ms ahead of that of node 4095, and 500 ms are allowed: set the clocks, by NTP or the like"
        );
    }
}
