//! The agreement of all nodes on a growth: the confirmations, and the next step of a node. Pure: the time and the view are passed in.
//!
//! A growth of a topic that several nodes use has two phases in the topic's entry of the catalogue:
//! 1. A node writes `growing`. Every node that reads it closes its gate for publishes by key, waits until the publishes in progress have
//!    ended, and confirms the growth by owning a name under its session.
//! 2. When every member has confirmed, a leading node adds the partitions, reads the ends of the old ones as barriers, and replaces
//!    `growing` with the new mapping. Nodes that read it open their gates by the new mapping.
//!
//! If a member neither confirms nor loses its session within [`CONFIRMED_WITHIN_MS`], the leading node rolls the growth back: it removes
//! `growing`, and the old mapping stays. The node that began the growth leads. Other members take over one after the other, so that
//! a growth whose node has crashed is finished or rolled back. Each write is conditional on the entry's version, so two leaders are
//! harmless.
//!
//! Safety relies on this: a node reads members and confirmations from one [`ClusterSnapshot`] that contains its own confirmation. A node that
//! joined before that picture is in it. A node that joins later reads the catalogue after it has joined, and finds the growth.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use whimbrel_model::TopicNumber;
use whimbrel_model::ports::ClusterSnapshot;

/// A growth that is not confirmed after this time is rolled back.
pub const CONFIRMED_WITHIN_MS: u64 = 30_000;
/// A growth that every member has confirmed is also rolled back, if the log has not added the partitions after this time.
pub const FINISHED_WITHIN_MS: u64 = CONFIRMED_WITHIN_MS + 10_000;
/// How long the next member in the order of node numbers waits for those before it, and for the node that began the growth.
pub const TAKE_OVER_AFTER_MS: u64 = 2_000;

/// The first phase of a growth, as the topic's entry has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingGrowth {
    pub to: u32,
    /// The version of the entry on which the growth began. It is unique among the growths of the topic.
    pub base: u64,
}

impl PendingGrowth {
    /// The name that a node owns when it has confirmed.
    pub fn confirmation(&self, topic: TopicNumber, node: u16) -> String {
        format!("{}{node}", self.confirmations(topic))
    }

    fn confirmations(&self, topic: TopicNumber) -> String {
        format!("growing/{}/{}/", topic.0, self.base)
    }
}

/// The members, and those that have confirmed a growth: both from one snapshot of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confirmations {
    pub members: BTreeSet<u16>,
    pub confirmed: BTreeSet<u16>,
}

impl Confirmations {
    pub fn of(picture: &ClusterSnapshot, topic: TopicNumber, growing: &PendingGrowth) -> Self {
        let prefix = growing.confirmations(topic);
        let confirmed = picture.owners.iter().filter_map(|(name, owner)| {
            let node: u16 = name.strip_prefix(&prefix)?.parse().ok()?;
            (node == owner.node).then_some(node)
        });
        Self { members: picture.nodes.iter().map(|node| node.number).collect(), confirmed: confirmed.collect() }
    }

    /// Members that have not confirmed.
    pub fn missing(&self) -> impl Iterator<Item = u16> {
        self.members.difference(&self.confirmed).copied()
    }

    /// Whether every member has confirmed, including this node.
    fn is_complete_for(&self, me: u16) -> bool {
        self.members.contains(&me) && self.confirmed.contains(&me) && self.missing().next().is_none()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct GrowthView<'a> {
    pub now_ms: u64,
    /// This node's number under a valid session.
    pub me: u16,
    /// Whether this node's gate is closed, and every publish by the old mapping has left it.
    pub is_drained: bool,
    pub roll: &'a Confirmations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthStep {
    Wait,
    /// Own the name of the confirmation.
    Confirm,
    /// Add partitions, read the barriers, write the new mapping.
    Finish,
    /// Write the entry without the growth.
    RollBack,
}

/// The state of one node in one growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Participant {
    pub growing: PendingGrowth,
    /// When this node read of the growth, by its monotonic clock.
    pub since_ms: u64,
    /// Whether this node wrote `growing`.
    pub began_here: bool,
}

impl Participant {
    pub fn step(&self, sight: GrowthView<'_>) -> GrowthStep {
        let GrowthView { now_ms, me, is_drained, roll } = sight;
        if is_drained && !roll.confirmed.contains(&me) {
            return GrowthStep::Confirm;
        }
        let age_ms = now_ms.saturating_sub(self.since_ms);
        if !self.leads(age_ms, me, roll) {
            return GrowthStep::Wait;
        }
        if is_drained && roll.is_complete_for(me) && age_ms < FINISHED_WITHIN_MS {
            return GrowthStep::Finish;
        }
        if age_ms >= CONFIRMED_WITHIN_MS { GrowthStep::RollBack } else { GrowthStep::Wait }
    }

    /// The node that began the growth leads at once; members follow in the order of their numbers.
    fn leads(&self, age_ms: u64, me: u16, roll: &Confirmations) -> bool {
        let rank = roll.members.range(..me).count() as u64;
        self.began_here || age_ms >= TAKE_OVER_AFTER_MS * (rank + 1)
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::ports::{Member, Node, Owner};

    use super::*;

    const GROWING: PendingGrowth = PendingGrowth { to: 8, base: 17 };
    const TOPIC: TopicNumber = TopicNumber(3);

    fn roll(members: &[u16], confirmed: &[u16]) -> Confirmations {
        Confirmations { members: members.iter().copied().collect(), confirmed: confirmed.iter().copied().collect() }
    }

    fn participant(began_here: bool) -> Participant {
        Participant { growing: GROWING, since_ms: 100, began_here }
    }

    fn step(participant: Participant, age_ms: u64, me: u16, is_drained: bool, roll: &Confirmations) -> GrowthStep {
        participant.step(GrowthView { now_ms: participant.since_ms + age_ms, me, is_drained, roll })
    }

    #[test]
    fn a_node_confirms_when_its_gate_is_drained_and_not_before() {
        let nothing = roll(&[1, 2], &[]);
        assert_eq!(step(participant(true), 0, 1, false, &nothing), GrowthStep::Wait);
        assert_eq!(step(participant(true), 0, 1, true, &nothing), GrowthStep::Confirm);
        assert_eq!(step(participant(false), 0, 2, true, &roll(&[1, 2], &[1])), GrowthStep::Confirm);
    }

    #[test]
    fn the_growth_is_finished_when_every_member_has_confirmed_and_not_before() {
        assert_eq!(step(participant(true), 5, 1, true, &roll(&[1, 2], &[1])), GrowthStep::Wait);
        assert_eq!(step(participant(true), 5, 1, true, &roll(&[1, 2], &[1, 2])), GrowthStep::Finish);
    }

    #[test]
    fn a_growth_that_the_log_does_not_carry_out_is_rolled_back() {
        let complete = roll(&[1, 2], &[1, 2]);
        assert_eq!(step(participant(true), FINISHED_WITHIN_MS - 1, 1, true, &complete), GrowthStep::Finish);
        assert_eq!(step(participant(true), FINISHED_WITHIN_MS, 1, true, &complete), GrowthStep::RollBack);
    }

    #[test]
    fn a_member_that_lost_its_session_is_not_waited_for() {
        assert_eq!(step(participant(true), 5, 1, true, &roll(&[1], &[1])), GrowthStep::Finish);
    }

    #[test]
    fn a_snapshot_without_the_nodes_own_membership_or_confirmation_does_not_finish_the_growth() {
        assert_eq!(step(participant(true), 5, 1, true, &roll(&[2], &[1, 2])), GrowthStep::Wait);
        let stale = roll(&[], &[]);
        assert_eq!(step(participant(true), 5, 1, false, &stale), GrowthStep::Wait);
        assert_eq!(step(participant(true), 5, 1, true, &stale), GrowthStep::Confirm);
    }

    #[test]
    fn members_take_over_in_the_order_of_their_numbers() {
        let complete = roll(&[2, 5], &[2, 5]);
        assert_eq!(step(participant(false), TAKE_OVER_AFTER_MS - 1, 2, true, &complete), GrowthStep::Wait);
        assert_eq!(step(participant(false), TAKE_OVER_AFTER_MS, 2, true, &complete), GrowthStep::Finish);
        assert_eq!(step(participant(false), TAKE_OVER_AFTER_MS, 5, true, &complete), GrowthStep::Wait);
        assert_eq!(step(participant(false), 2 * TAKE_OVER_AFTER_MS, 5, true, &complete), GrowthStep::Finish);
    }

    #[test]
    fn a_growth_that_is_not_confirmed_in_time_is_rolled_back_by_the_node_that_leads() {
        let missing = roll(&[1, 2], &[1]);
        assert_eq!(step(participant(true), CONFIRMED_WITHIN_MS - 1, 1, true, &missing), GrowthStep::Wait);
        assert_eq!(step(participant(true), CONFIRMED_WITHIN_MS, 1, true, &missing), GrowthStep::RollBack);
        assert_eq!(step(participant(false), CONFIRMED_WITHIN_MS, 1, true, &missing), GrowthStep::RollBack);
        assert_eq!(
            step(participant(false), CONFIRMED_WITHIN_MS, 2, false, &missing),
            GrowthStep::RollBack,
            "not drained"
        );
    }

    #[test]
    fn a_roll_counts_confirmations_of_this_growth_by_their_owners_only() {
        let node = |number| Node { number, member: Member::default() };
        let owner = |name: &str, node| (name.to_owned(), Owner { node, epoch: 1 });
        let picture = ClusterSnapshot {
            revision: 9,
            nodes: vec![node(1), node(2), node(3)],
            owners: vec![
                owner(&GROWING.confirmation(TOPIC, 1), 1),
                owner(&GROWING.confirmation(TOPIC, 2), 3),
                owner(&PendingGrowth { base: 16, ..GROWING }.confirmation(TOPIC, 3), 3),
                owner(&GROWING.confirmation(TopicNumber(4), 3), 3),
                owner("holds/3", 3),
            ],
        };
        let roll = Confirmations::of(&picture, TOPIC, &GROWING);
        assert_eq!(roll, self::roll(&[1, 2, 3], &[1]));
        assert_eq!(roll.missing().collect::<Vec<_>>(), [2, 3]);
    }
}
