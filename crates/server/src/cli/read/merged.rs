//! The pages of several partitions as one, by when messages were published. Within a partition the order of offsets stays, also where its
//! times fall back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::Serialize;
use whimbrel_client::{Message, ReadPage};

/// What one partition gave.
#[derive(Debug)]
pub struct PartitionPage {
    pub partition: u32,
    pub page: ReadPage,
    /// Nothing lies behind it.
    pub is_whole: bool,
}

#[derive(Debug, Serialize)]
pub struct Merged {
    pub messages: Vec<Message>,
    /// By partition: where to read on.
    pub next_offsets: BTreeMap<u32, u64>,
    /// Something lies behind `next_offsets`.
    pub has_more: bool,
}

/// The oldest `limit` messages. It ends early where a page does behind which there is more: what follows there may be older than what the
/// others have.
pub fn merge(pages: Vec<PartitionPage>, limit: usize) -> Merged {
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
    Merged { messages, next_offsets, has_more }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(partition: u32, times: &[&str], is_whole: bool) -> PartitionPage {
        let message = |(offset, time): (usize, &&str)| -> Message {
            let json = serde_json::json!({
                "id": "i", "topic": "t", "partition": partition, "offset": offset, "published_at": time,
            });
            serde_json::from_value(json).unwrap()
        };
        let messages: Vec<Message> = times.iter().enumerate().map(message).collect();
        PartitionPage { partition, page: ReadPage { messages, next_offset: times.len() as u64 }, is_whole }
    }

    fn places(merged: &Merged) -> Vec<(u32, u64)> {
        merged.messages.iter().map(|message| (message.partition, message.offset)).collect()
    }

    #[test]
    fn messages_are_merged_by_when_they_were_published() {
        let merged = merge(vec![page(0, &["1", "4"], true), page(1, &[], true), page(2, &["2", "3"], true)], 10);
        assert_eq!(places(&merged), [(0, 0), (2, 0), (2, 1), (0, 1)]);
        assert_eq!(merged.next_offsets, BTreeMap::from([(0, 2), (1, 0), (2, 2)]));
        assert!(!merged.has_more);
    }

    #[test]
    fn the_limit_is_over_all_and_what_was_not_taken_is_read_on_from() {
        let merged = merge(vec![page(0, &["1", "4"], true), page(1, &["2", "3"], true)], 2);
        assert_eq!(places(&merged), [(0, 0), (1, 0)]);
        assert_eq!((merged.next_offsets, merged.has_more), (BTreeMap::from([(0, 1), (1, 1)]), true));
    }

    #[test]
    fn a_clock_that_fell_back_does_not_turn_a_partition_around() {
        let merged = merge(vec![page(0, &["5", "1"], true), page(1, &["2"], true)], 10);
        assert_eq!(places(&merged), [(1, 0), (0, 0), (0, 1)]);
    }

    #[test]
    fn nothing_newer_is_taken_than_what_a_cut_page_may_still_have() {
        let merged = merge(vec![page(0, &["1"], false), page(1, &["3"], true)], 10);
        assert_eq!(places(&merged), [(0, 0)]);
        assert!(merged.has_more);
        assert_eq!(merged.next_offsets, BTreeMap::from([(0, 1), (1, 0)]));
    }
}
