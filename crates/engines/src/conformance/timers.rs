//! The contract of [`Timers`], as properties that every engine must have.
//!
//! Properties begin with an empty store and use its shards from zero on. If all tests share one server, the factory gives each instance a
//! prefix of its own. The effect on the owner of a store that lost its last writes is tested with the owner. Here a property requires that
//! every read returns the applied offset.

use std::time::Duration;

use whimbrel_model::ports::Timers;

use super::{Opened, Opens};
pub use scene::{at, hold};

mod apply;
mod count;
mod due;
mod ends;
mod list;
mod naive;
mod open;
mod rows;
mod scene;
mod whole;

/// The properties of the suite, by file.
#[doc(hidden)]
#[macro_export]
macro_rules! timers_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            open: [
                a_shard_that_was_never_written_is_empty_at_zero,
                an_older_epoch_cannot_open_a_shard,
                the_same_epoch_opens_a_shard_again,
                a_newer_epoch_takes_a_shard_and_gets_its_offset,
                an_epoch_is_remembered_before_anything_is_written,
                shards_have_epochs_of_their_own,
            ]
            apply: [
                a_write_moves_the_store_to_its_offset,
                a_write_without_changes_moves_the_store_too,
                a_write_from_elsewhere_is_told_where_the_store_is_and_changes_nothing,
                a_write_of_an_older_epoch_is_refused_and_changes_nothing,
                one_of_many_writes_at_the_same_offset_is_done,
                a_reset_empties_the_shard_and_its_own_changes_stay,
                a_reset_may_go_back_to_an_earlier_offset,
                a_reset_at_another_offset_empties_nothing,
                a_reset_of_an_older_epoch_empties_nothing,
                rows_from_before_a_reset_are_never_visible_again,
                a_dropped_write_is_whole_or_absent,
            ]
            due: [
                holds_are_returned_in_due_order_and_then_by_id,
                holds_are_returned_as_they_were_put,
                reading_on_from_a_cursor_misses_and_repeats_nothing,
                a_cursor_need_not_be_a_hold,
                until_is_not_included,
                a_page_has_no_more_than_its_limit,
                a_page_has_no_more_than_its_bytes_but_one_hold_at_least,
                a_put_below_the_earlier_floor_is_found_without_a_cursor,
                a_put_below_the_floor_of_its_own_write_is_found_without_a_cursor,
                a_cursor_below_the_floor_finds_all,
                ended_holds_below_the_floor_are_not_returned,
            ]
            rows: [
                a_moved_hold_leaves_no_stale_row,
                a_hold_put_where_all_others_have_ended_is_found,
                a_hold_put_again_at_the_same_time_is_replaced,
                a_hold_that_changes_its_topic_leaves_no_stale_row,
                a_hold_found_by_its_id_is_the_one_found_by_its_time,
                ids_are_answered_in_the_order_of_the_question,
                an_id_that_begins_another_is_another,
                every_read_returns_the_applied_offset,
            ]
            ends: [
                an_ended_hold_is_found_by_its_id_alone,
                every_kind_of_end_is_returned_as_written,
                an_end_of_an_id_that_was_never_put_is_remembered,
                an_end_replaces_an_earlier_end_whatever_their_times,
                a_hold_put_again_after_its_end_is_pending,
                a_hold_that_ends_twice_keeps_its_latest_end,
                dead_ends_are_listed_in_due_order,
                dead_ends_are_listed_by_topic_range_and_cursor,
                a_dead_hold_that_is_put_again_is_not_listed,
                a_dead_hold_that_ended_otherwise_is_not_listed,
                an_end_is_remembered_for_its_time,
                an_end_is_forgotten_after_its_time,
            ]
            list: [
                a_list_of_a_topic_has_its_holds_in_due_order,
                a_list_of_all_topics_has_all_in_due_order,
                a_list_keeps_to_its_range,
                listing_on_from_a_cursor_misses_and_repeats_nothing,
                a_list_of_an_unknown_topic_is_empty,
            ]
            count: [
                holds_are_counted_by_the_minute,
                buckets_of_many_minutes_begin_at_their_multiples,
                bounds_of_a_count_are_widened_to_whole_minutes,
                a_count_of_one_topic_leaves_the_others_out,
                moved_or_ended_holds_are_not_counted,
                a_hold_put_again_at_the_same_time_is_counted_once,
            ]
            whole: [
                a_random_walk_agrees_with_a_naive_model,
                shards_do_not_see_each_other,
                a_large_payload_is_returned_whole,
                thousands_of_holds_of_one_write_are_returned_in_order,
                a_store_opened_again_is_as_it_was,
                reads_beside_writes_see_whole_writes_only,
            ]
        }
    };
}

crate::timers_properties! { conformance_exports }

/// An engine for the suite.
pub trait TimersFactory: Opens<dyn Timers> {
    /// The time for which ends are remembered, by the `now` of the writes: at least a minute, at most a day. An engine may remember them
    /// for up to twice that time.
    fn remember(&self) -> Duration;
}

pub type OpenTimers = Opened<dyn Timers>;
