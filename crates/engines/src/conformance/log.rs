//! The contract of [`Log`] and [`LogTopics`], as properties that every engine must have.
//!
//! Topics get numbers and names that no other test of the machine uses, so that all properties may share one store.

use std::sync::Arc;

use whimbrel_model::ports::{Log, LogTopics};

use super::{Opened, Opens};
pub use scene::{entry, entry_of_size, new_spec, record, text_of};

mod append;
mod commit;
mod concurrent;
mod contents;
mod read;
mod scene;
mod topics;
mod trim;

/// The properties of the suite, by file.
#[doc(hidden)]
#[macro_export]
macro_rules! log_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            append: [
                records_of_one_call_keep_their_order_within_a_partition,
                offsets_grow_from_call_to_call,
                a_call_over_several_partitions_is_answered_in_its_own_order,
                an_empty_append_returns_no_offsets,
                a_record_of_the_largest_size_is_taken,
                a_record_over_the_limit_is_refused_and_its_neighbours_are_taken,
                an_unknown_partition_is_the_error_of_its_record_alone,
                a_dropped_append_does_not_affect_others,
                acknowledged_records_survive_a_restart,
            ]
            contents: [
                a_record_is_read_exactly_as_appended,
                no_key_is_not_an_empty_key,
                an_empty_value_stays_empty,
                headers_keep_order_repeats_and_binary_values,
            ]
            read: [
                a_reader_at_the_end_is_woken_by_an_append,
                a_reader_at_the_end_is_woken_by_a_commit,
                a_read_without_waiting_is_empty_at_the_end,
                a_read_that_times_out_is_empty,
                a_read_returns_a_record_acknowledged_just_before,
                an_offset_beyond_the_end_is_rejected_with_the_end,
                a_read_returns_no_more_records_than_asked,
                a_read_returns_no_more_bytes_than_asked_but_one_record_at_least,
                reading_on_from_next_misses_and_repeats_nothing,
                reading_back_begins_at_the_requested_offset,
                a_time_leads_to_the_first_record_at_or_after_it,
                a_time_in_an_empty_partition_leads_to_its_end,
                an_unknown_partition_cannot_be_read,
            ]
            concurrent: [
                many_appenders_at_once_lose_nothing_and_share_no_offset,
                appends_beside_commits_lose_nothing,
                a_time_lookup_does_not_skip_a_record_that_is_being_appended,
                readers_at_different_places_do_not_disturb_each_other,
                waiting_readers_do_not_keep_others_from_reading,
                many_waiting_readers_are_all_woken,
                a_burst_reaches_every_reader_at_the_tail_whole_and_in_order,
                a_reader_that_is_not_polled_while_others_read_misses_nothing,
            ]
            trim: [
                an_empty_partition_begins_and_ends_at_zero,
                bounds_count_everything_acknowledged,
                trimming_never_removes_more_than_requested,
                a_trimmed_offset_is_rejected_with_the_first_kept_one,
                records_kept_by_a_trim_are_readable,
                trimming_does_not_move_the_end,
                a_waiting_reader_gets_an_error_when_a_trim_passes_its_offset,
            ]
            commit: [
                a_commit_over_partitions_and_topics_is_all_visible,
                commits_of_one_fence_land_in_the_order_of_their_calls,
                an_empty_commit_is_done,
                a_zombie_is_fenced_and_wrote_nothing,
                the_newest_fence_commits,
                fences_of_different_names_are_independent,
                a_fence_of_another_instance_voids_this_one,
                a_commit_with_a_record_too_large_is_refused_by_its_index_and_writes_nothing,
                a_commit_to_an_unknown_partition_is_refused_by_its_index_and_writes_nothing,
                a_fence_remains_valid_after_a_rejected_commit,
                reading_passes_what_commits_leave_behind_and_reaches_the_end,
                a_dropped_commit_is_whole_or_absent,
            ]
            topics: [
                creating_a_topic_twice_keeps_its_records,
                a_topic_keeps_its_partitions_if_it_is_created_with_fewer,
                altering_grows_and_new_partitions_begin_at_zero,
                altering_never_shrinks,
                deleting_a_missing_topic_is_no_error,
                an_identity_belongs_to_one_topic_and_not_to_a_later_one_of_its_name,
                a_late_deletion_keeps_a_later_topic_of_that_name,
                an_instance_deletes_a_topic_that_it_does_not_know,
                a_deleted_topic_rejects_reads_and_writes,
                a_waiting_reader_gets_an_error_when_its_topic_is_deleted,
                a_topic_made_again_under_an_old_name_inherits_nothing,
                a_topic_is_described_partition_by_partition,
                an_unknown_topic_cannot_be_described,
                another_instance_reads_the_records_of_this_one,
                another_instance_wakes_a_reader_of_this_one,
            ]
        }
    };
}

crate::log_properties! { conformance_exports }

/// An engine for the suite.
pub trait LogFactory: Opens<LogPorts> {
    /// The properties of the engine that the suite depends on.
    fn traits(&self) -> LogTraits;
}

/// The two ports of a log.
pub struct LogPorts {
    pub log: Arc<dyn Log>,
    pub topics: Arc<dyn LogTopics>,
}

pub type OpenLog = Opened<LogPorts>;

/// Differences between engines that the contract allows.
#[derive(Debug, Clone, Copy)]
pub struct LogTraits {
    /// The maximum [`whimbrel_model::Record::size`] that the engine accepts. One byte more is rejected.
    pub record_bytes_max: usize,
    /// Whether several instances can be open at one place. Otherwise the properties that need a second one pass.
    pub is_shared: bool,
}
