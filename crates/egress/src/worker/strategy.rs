//! Selects one worker of several, and assigns workers to a topic whose setting names only a number. Pure: loads, random numbers and the
//! state of a rotation are passed in.

use whimbrel_model::subscription::{AssignWorkers, Strategy};

/// The weight of a worker without load.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// The number of calls in progress that halves the weight of a worker.
const HALVING_IN_FLIGHT: f64 = 16.0;
/// Higher values of CPU or memory use count as this one, so that a worker that replies keeps a weight.
const BUSY_MAX: f64 = 0.95;

/// The load of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerLoad {
    pub in_flight: u64,
    /// The used part of the machine, from 0 to 1.
    pub cpu: f32,
    pub memory: f32,
}

impl WorkerLoad {
    /// The weight of the worker: the lower the load, the higher. Never zero.
    pub fn weight(&self) -> u32 {
        let free = |busy: f32| 1.0 - f64::from(busy).clamp(0.0, BUSY_MAX);
        let waiting = 1.0 + self.in_flight as f64 / HALVING_IN_FLIGHT;
        let weight = f64::from(WEIGHT_MAX) * free(self.cpu) * free(self.memory) / waiting;
        (weight as u32).max(1)
    }
}

/// The state of the rotations of one pool.
#[derive(Debug, Clone, Default)]
pub struct Rotation {
    next: usize,
    /// The credits of the weighted rotation, by position in the pool.
    credits: Vec<i64>,
}

/// Selects a position whose weight is not zero; `None` if there is none.
pub fn pick(strategy: Strategy, weights: &[u32], turn: &mut Rotation, random: u64) -> Option<usize> {
    let candidates = || weights.iter().enumerate().filter(|(_, weight)| **weight > 0).map(|(index, _)| index);
    let count = candidates().count();
    if count <= 1 {
        return candidates().next();
    }
    match strategy {
        Strategy::Random => candidates().nth((random % count as u64) as usize),
        Strategy::RoundRobin => {
            let picked = candidates().find(|index| *index >= turn.next).or_else(|| candidates().next())?;
            turn.next = picked + 1;
            Some(picked)
        }
        Strategy::WeightedRandom => {
            let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            let mut rest = random % total;
            weights.iter().position(|weight| {
                let is_it = rest < u64::from(*weight);
                rest = rest.saturating_sub(u64::from(*weight));
                is_it
            })
        }
        Strategy::WeightedRoundRobin => Some(smoothly(weights, turn)),
        Strategy::LeastLoaded => {
            let best = weights.iter().max()?;
            // Select randomly among equals, so that several centers do not all start with the same worker.
            let equals = || weights.iter().enumerate().filter(|(_, weight)| *weight == best);
            let nth = (random % equals().count() as u64) as usize;
            equals().nth(nth).map(|(index, _)| index)
        }
    }
}

/// Smooth weighted round robin: each worker gains its weight, and the one with the most credits is selected and pays the sum of all
/// weights. A worker with a high weight is selected often, but not many times in a row.
fn smoothly(weights: &[u32], turn: &mut Rotation) -> usize {
    turn.credits.resize(weights.len(), 0);
    let mut picked = 0;
    for (index, weight) in weights.iter().enumerate() {
        if *weight == 0 {
            // A worker that cannot be selected keeps no credits.
            turn.credits[index] = 0;
            continue;
        }
        turn.credits[index] += i64::from(*weight);
        if weights[picked] == 0 || turn.credits[index] > turn.credits[picked] {
            picked = index;
        }
    }
    turn.credits[picked] -= weights.iter().map(|weight| i64::from(*weight)).sum::<i64>();
    picked
}

/// Assigns `count` workers to a topic. Present workers stay assigned while they are candidates; free places go to the least loaded workers,
/// or to those with the highest affinity to the topic.
///
/// `candidates` are names with weights. Returns positions in it.
pub fn assign(
    assign: AssignWorkers,
    count: usize,
    topic: &str,
    present: &[String],
    candidates: &[(&str, u32)],
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| {
        let (name, weight) = candidates[*index];
        let stays = present.iter().any(|each| each == name);
        let by_load = if assign == AssignWorkers::LeastLoaded { u32::MAX - weight } else { 0 };
        (!stays, if stays { 0 } else { by_load }, std::cmp::Reverse(affinity(topic, name)), name)
    });
    order.truncate(count);
    order.sort_unstable();
    order
}

/// Rendezvous hashing: every node computes the same order of workers for a topic, and a worker that leaves moves no other assignment.
fn affinity(topic: &str, name: &str) -> u64 {
    // FNV-1a with a finalizer, not a hasher of a library: nodes of different versions must agree.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in topic.bytes().chain([0]).chain(name.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mixed(hash)
}

/// Mixes the bits of a number, so that each bit of the result depends on all bits of the input.
pub fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert, proptest};

    const ROUNDS: u64 = 60_000;

    /// How often each position was selected.
    fn spread(strategy: Strategy, weights: &[u32]) -> Vec<u64> {
        let (mut turn, mut counts) = (Rotation::default(), vec![0; weights.len()]);
        for round in 0..ROUNDS {
            counts[pick(strategy, weights, &mut turn, mixed(round + 1)).unwrap()] += 1;
        }
        counts
    }

    fn assert_shares(counts: &[u64], shares: &[f64]) {
        for (count, share) in counts.iter().zip(shares) {
            let part = *count as f64 / ROUNDS as f64;
            assert!((part - share).abs() < 0.01, "{counts:?} and not {shares:?}");
        }
    }

    #[test]
    fn random_spreads_evenly_whatever_the_weights() {
        assert_shares(&spread(Strategy::Random, &[1, 1_000, 0, 5]), &[1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]);
    }

    #[test]
    fn round_robin_takes_one_after_the_other() {
        let mut turn = Rotation::default();
        let picks: Vec<_> = (0..7).filter_map(|_| pick(Strategy::RoundRobin, &[9, 1, 0, 5], &mut turn, 3)).collect();
        assert_eq!(picks, [0, 1, 3, 0, 1, 3, 0]);
    }

    #[test]
    fn weighted_random_spreads_by_weight() {
        assert_shares(&spread(Strategy::WeightedRandom, &[1, 2, 0, 7]), &[0.1, 0.2, 0.0, 0.7]);
    }

    #[test]
    fn weighted_round_robin_spreads_by_weight() {
        assert_shares(&spread(Strategy::WeightedRoundRobin, &[1, 2, 0, 7]), &[0.1, 0.2, 0.0, 0.7]);
    }

    #[test]
    fn weighted_round_robin_is_smooth() {
        let mut turn = Rotation::default();
        let mut next = || pick(Strategy::WeightedRoundRobin, &[5, 1, 1], &mut turn, 0).unwrap();
        let picks: Vec<_> = (0..7).map(|_| next()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0], "and not five times the first and then the others");
    }

    #[test]
    fn least_loaded_takes_the_one_with_the_least_and_any_of_equals() {
        assert_shares(&spread(Strategy::LeastLoaded, &[1, 9, 3]), &[0.0, 1.0, 0.0]);
        assert_shares(&spread(Strategy::LeastLoaded, &[9, 9, 3]), &[0.5, 0.5, 0.0]);
    }

    #[test]
    fn the_busier_a_worker_the_less_it_weighs() {
        let load = |in_flight, cpu, memory| WorkerLoad { in_flight, cpu, memory }.weight();
        assert_eq!(load(0, 0.0, 0.0), WEIGHT_MAX);
        assert!(load(1, 0.0, 0.0) < load(0, 0.0, 0.0));
        assert!(load(0, 0.5, 0.0) < load(0, 0.1, 0.0));
        assert!(load(0, 0.0, 0.9) < load(0, 0.0, 0.1));
        assert!(load(1_000, 0.0, 0.0) > load(1_100, 0.0, 0.0));
        assert!(load(u64::MAX, 7.0, f32::NAN) >= 1);
    }

    #[test]
    fn a_pool_keeps_its_workers_and_replaces_only_who_went() {
        for how in [AssignWorkers::Random, AssignWorkers::LeastLoaded] {
            let candidates = [("a", 5), ("b", 9), ("c", 1), ("d", 7), ("e", 3)];
            let first = assign(how, 3, "orders", &[], &candidates);
            let names: Vec<String> = first.iter().map(|index| candidates[*index].0.to_owned()).collect();
            let busier: Vec<_> = candidates.iter().map(|(name, weight)| (*name, 10 - weight)).collect();
            assert_eq!(assign(how, 3, "orders", &names, &busier), first, "loads that change move nobody");
            let left: Vec<_> = candidates.iter().copied().filter(|(name, _)| *name != names[0]).collect();
            let second = assign(how, 3, "orders", &names, &left);
            let stayed = second.iter().filter(|index| names.iter().any(|name| name == left[**index].0)).count();
            assert_eq!((second.len(), stayed), (3, 2));
        }
    }

    #[test]
    fn a_pool_of_the_least_loaded_has_them() {
        let candidates = [("a", 5), ("b", 9), ("c", 1), ("d", 7)];
        assert_eq!(assign(AssignWorkers::LeastLoaded, 2, "orders", &[], &candidates), [1, 3]);
    }

    #[test]
    fn pools_of_many_topics_spread_over_the_workers() {
        let candidates = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
        let mut counts = [0; 4];
        for topic in 0..400 {
            let pool = assign(AssignWorkers::Random, 1, &format!("topic-{topic}"), &[], &candidates);
            counts[pool[0]] += 1;
        }
        assert!(counts.iter().all(|count| (70..130).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn whoever_is_picked_can_be_picked(weights in vec(0u32..5, 0..8), randoms: Vec<u64>) {
            use Strategy::*;
            for strategy in [Random, RoundRobin, WeightedRandom, WeightedRoundRobin, LeastLoaded] {
                let mut turn = Rotation::default();
                for random in &randoms {
                    match pick(strategy, &weights, &mut turn, *random) {
                        Some(picked) => prop_assert!(weights[picked] > 0),
                        None => prop_assert!(weights.iter().all(|weight| *weight == 0)),
                    }
                }
            }
        }
    }
}
