//! The acknowledged messages, and the check that readers that respect the barriers find them in order.

use std::collections::BTreeMap;

use whimbrel_model::partitioner::partition_of;

use super::coordination::SimEntry;
use crate::CheckResult;

/// The position of an acknowledged message.
#[derive(Debug, Clone, Copy)]
struct AckPosition {
    number: u64,
    partition: u32,
    offset: u64,
}

#[derive(Debug)]
pub struct GrowthTruth {
    /// The partitions before any growth.
    partitions: u32,
    acknowledged: BTreeMap<usize, Vec<AckPosition>>,
}

impl GrowthTruth {
    pub fn new(partitions: u32) -> Self {
        Self { partitions, acknowledged: BTreeMap::new() }
    }

    pub fn acknowledge(&mut self, key: usize, number: u64, partition: u32, offset: u64) {
        self.acknowledged.entry(key).or_default().push(AckPosition { number, partition, offset });
    }

    /// Compares all acknowledged messages with the barriers of the entry.
    pub fn check(&self, entry: &SimEntry) -> CheckResult {
        for (key, places) in &self.acknowledged {
            let mut last: Option<(usize, AckPosition)> = None;
            for place in places {
                let AckPosition { number, partition, offset } = *place;
                // The growths whose barriers the message lies behind.
                let growths = entry.growths.iter();
                let is_behind = |ends: Option<&u64>| ends.is_none_or(|end| offset >= *end);
                let passed = growths.filter(|growth| is_behind(growth.ends.get(partition as usize))).count();
                let count = passed.checked_sub(1).map_or(self.partitions, |at| entry.growths[at].to);
                let wanted = partition_of(key_text(*key).as_bytes(), count);
                if partition != wanted {
                    return Err(format!(
                        "message {number} of key {key} was acknowledged at {partition}/{offset}, behind {passed} growths, \
                         where the key maps to {wanted}"
                    ));
                }
                if let Some((before, earlier)) = last
                    && (passed < before || passed == before && offset <= earlier.offset)
                {
                    return Err(format!("messages {} and {number} of key {key} are out of order", earlier.number));
                }
                last = Some((passed, *place));
            }
        }
        Ok(())
    }
}

pub fn key_text(key: usize) -> String {
    format!("key-{key}")
}
