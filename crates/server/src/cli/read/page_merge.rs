//! Merges pages of several partitions by publish time. Within a partition the order of offsets is kept, even where its times go
//! back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::Serialize;
use whimbrel_client::{Message, ReadPage};

/// The page of one partition.
#[derive(Debug)]
pub struct PartitionPage {
    pub partition: u32,
    pub page: ReadPage,
    /// No message follows it.
    pub is_whole: bool,
}

#[derive(Debug, Serialize)]
pub struct MergedPages {
    pub messages: Vec<Message>,
    /// The next offset of each partition.
    pub next_offsets: BTreeMap<u32, u64>,
    /// Messages follow `next_offsets`.
    pub has_more: bool,
}

/// The oldest `limit` messages. The result ends early at the end of an incomplete page: its next messages may be older than those of
/// other partitions.
pub fn merge(pages: Vec<PartitionPage>, limit: usize) -> MergedPages {
    let mut next_offsets: BTreeMap<u32, u64> = BTreeMap::new();
    let mut heads = BinaryHeap::new();
    let mut rests = BTreeMap::new();
    for PartitionPage { partition, page, is_whole } in pages {
        let mut rest = page.messages.into_iter().peekable();
        next_offsets.insert(partition, rest.peek().map_or(page.next_offset, |message| message.offset));
        if let Some(first) = rest.peek() {
            heads.push(Reverse((first.published_at.clone(), partition)));
        }
        rests.insert(partition, (rest, page.next_offset, is_whole));
    }
    let mut messages = Vec::new();
    let mut is_cut = false;
    while messages.len() < limit && !is_cut {
        let Some(Reverse((_, partition))) = heads.pop() else { break };
        let Some((rest, page_end, is_whole)) = rests.get_mut(&partition) else { break };
        messages.extend(rest.next());
        match rest.peek() {
            Some(next) => {
                heads.push(Reverse((next.published_at.clone(), partition)));
                next_offsets.insert(partition, next.offset);
            }
            None => {
                next_offsets.insert(partition, *page_end);
                is_cut = !*is_whole;
            }
        }
    }
    let has_more = is_cut || !heads.is_empty();
    MergedPages { messages, next_offsets, has_more }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(partition: u32, times: &[&str], is_whole: bool) -> PartitionPage {
        let message = |(offset, time): (usize, &&str)| -> Message {
            let json = serde_json::json!({
                "id": "i", "topic": "t", "partition": partition, "offset": offset, "headers": {}, "published_at": time,
            });
            serde_json::from_value(json).unwrap()
        };
        let messages: Vec<Message> = times.iter().enumerate().map(message).collect();
        PartitionPage { partition, page: ReadPage { messages, next_offset: times.len() as u64 }, is_whole }
    }

    fn places(merged: &MergedPages) -> Vec<(u32, u64)> {
        merged.messages.iter().map(|message| (message.partition, message.offset)).collect()
    }

    #[test]
    fn messages_are_merged_by_publish_time() {
        let merged = merge(vec![page(0, &["1", "4"], true), page(1, &[], true), page(2, &["2", "3"], true)], 10);
        assert_eq!(places(&merged), [(0, 0), (2, 0), (2, 1), (0, 1)]);
        assert_eq!(merged.next_offsets, BTreeMap::from([(0, 2), (1, 0), (2, 2)]));
        assert!(!merged.has_more);
    }

    #[test]
    fn the_limit_is_over_all_partitions_and_the_next_read_starts_after_it() {
        let merged = merge(vec![page(0, &["1", "4"], true), page(1, &["2", "3"], true)], 2);
        assert_eq!(places(&merged), [(0, 0), (1, 0)]);
        assert_eq!((merged.next_offsets, merged.has_more), (BTreeMap::from([(0, 1), (1, 1)]), true));
    }

    #[test]
    fn a_clock_step_backward_does_not_reorder_a_partition() {
        let merged = merge(vec![page(0, &["5", "1"], true), page(1, &["2"], true)], 10);
        assert_eq!(places(&merged), [(1, 0), (0, 0), (0, 1)]);
    }

    #[test]
    fn no_message_is_newer_than_the_next_of_an_incomplete_page() {
        let merged = merge(vec![page(0, &["1"], false), page(1, &["3"], true)], 10);
        assert_eq!(places(&merged), [(0, 0)]);
        assert!(merged.has_more);
        assert_eq!(merged.next_offsets, BTreeMap::from([(0, 1), (1, 0)]));
    }
}
