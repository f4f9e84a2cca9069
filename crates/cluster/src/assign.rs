//! Decides which center owns which shard: a pure function of the centers and the present owners, so that all nodes with the same view of
//! the cluster agree without communication.

use std::collections::BTreeMap;

/// The assigned center of each shard; `None` if there is no center.
///
/// `present` has the present owner of each shard. The shares of the centers differ by at most one shard. Within that, as few shards as
/// possible move. A shard without a living owner does not count as a move.
pub fn assign(centers: &[u16], present: &[Option<u16>]) -> Vec<Option<u16>> {
    let mut rooms = rooms(centers, present);
    let mut assigned: Vec<Option<u16>> =
        present.iter().map(|owner| owner.filter(|node| enter(&mut rooms, *node))).collect();
    let mut vacancies = rooms.into_iter().flat_map(|(node, room)| std::iter::repeat_n(node, room));
    for shard in assigned.iter_mut().filter(|shard| shard.is_none()) {
        *shard = vacancies.next();
    }
    assigned
}

/// The share of each center. The centers with the most shards get the remainder, so that they need not give it up.
fn rooms(centers: &[u16], present: &[Option<u16>]) -> BTreeMap<u16, usize> {
    let mut owned: BTreeMap<u16, usize> = centers.iter().map(|node| (*node, 0)).collect();
    for node in present.iter().flatten() {
        owned.entry(*node).and_modify(|count| *count += 1);
    }
    if owned.is_empty() {
        return owned;
    }
    let (each, one_more) = (present.len() / owned.len(), present.len() % owned.len());
    let mut by_count: Vec<(u16, usize)> = owned.into_iter().collect();
    by_count.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
    (0..).zip(by_count).map(|(rank, (node, _))| (node, each + usize::from(rank < one_more))).collect()
}

fn enter(rooms: &mut BTreeMap<u16, usize>, node: u16) -> bool {
    match rooms.get_mut(&node) {
        Some(room) if *room > 0 => {
            *room -= 1;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    fn counts(centers: &[u16], assigned: &[Option<u16>]) -> Vec<usize> {
        centers.iter().map(|node| assigned.iter().filter(|owner| **owner == Some(*node)).count()).collect()
    }

    /// The moves that no fair assignment can avoid: the shards of living centers beyond their share, with the best choice of centers that
    /// get one more.
    fn fewest_moves(centers: &[u16], present: &[Option<u16>]) -> usize {
        let (each, mut one_more) = (present.len() / centers.len(), present.len() % centers.len());
        let mut owned = counts(centers, present);
        owned.sort_unstable_by(|a, b| b.cmp(a));
        let mut moves = 0;
        for count in owned {
            let share = each + usize::from(one_more > 0);
            one_more = one_more.saturating_sub(1);
            moves += count.saturating_sub(share);
        }
        moves
    }

    #[test]
    fn without_a_center_no_shard_has_an_owner() {
        assert_eq!(assign(&[], &[Some(1), None]), [None, None]);
    }

    #[test]
    fn a_second_center_gets_half_and_the_first_keeps_the_rest() {
        let present = [Some(4); 16];
        let assigned = assign(&[4, 9], &present);
        assert_eq!(counts(&[4, 9], &assigned), [8, 8]);
        assert_eq!(assigned[..8], [Some(4); 8]);
    }

    fn cluster() -> impl Strategy<Value = (Vec<u16>, Vec<Option<u16>>)> {
        let centers = btree_set(0u16..12, 1..8).prop_map(|nodes| nodes.into_iter().collect::<Vec<_>>());
        (centers, vec(proptest::option::of(0u16..12), 0..40))
    }

    proptest! {
        #[test]
        fn every_shard_gets_a_living_center_and_shares_differ_by_one((centers, present) in cluster()) {
            let assigned = assign(&centers, &present);
            prop_assert_eq!(assigned.len(), present.len());
            prop_assert!(assigned.iter().all(|owner| owner.is_some_and(|node| centers.contains(&node))));
            let counts = counts(&centers, &assigned);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }

        #[test]
        fn as_few_shards_as_possible_move((centers, present) in cluster()) {
            let assigned = assign(&centers, &present);
            let moved = present.iter().zip(&assigned).filter(|(had, gets)| {
                had.is_some_and(|node| centers.contains(&node)) && had != gets
            });
            prop_assert_eq!(moved.count(), fewest_moves(&centers, &present));
        }

        #[test]
        fn an_assignment_is_stable((centers, present) in cluster()) {
            let assigned = assign(&centers, &present);
            prop_assert_eq!(assign(&centers, &assigned), assigned);
        }

        #[test]
        fn the_other_shards_stay_while_some_are_given_up((centers, present) in cluster(), half: Vec<bool>) {
            let assigned = assign(&centers, &present);
            // Some of the shards that must move have been given up and have no new owner yet.
            let under_way: Vec<_> = present.iter().zip(&assigned).zip(half.into_iter().chain(std::iter::repeat(true)))
                .map(|((had, gets), given_up)| if had != gets && given_up { None } else { *had })
                .collect();
            let again = assign(&centers, &under_way);
            for (kept, (had, gets)) in again.iter().zip(present.iter().zip(&assigned)) {
                if had == gets {
                    prop_assert_eq!(kept, gets);
                }
            }
        }

        #[test]
        fn the_order_of_the_centers_does_not_matter((centers, present) in cluster()) {
            let reversed: Vec<u16> = centers.iter().rev().copied().collect();
            prop_assert_eq!(assign(&reversed, &present), assign(&centers, &present));
        }
    }
}
