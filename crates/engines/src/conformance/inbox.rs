//! The contract of [`Inbox`], as properties that every engine must have.
//!
//! Properties begin with an empty store and use its partitions from zero on. If all tests share one
//! server, the factory gives each instance a prefix of its own. [`naive::NaiveInbox`] is the reference model of a partition, with which
//! engines are compared.

use whimbrel_model::ports::Inbox;

use super::{Opened, Opens};

mod apply;
pub mod naive;
mod rows;
mod scene;
mod whole;

/// The properties of the suite, by file.
#[doc(hidden)]
#[macro_export]
macro_rules! inbox_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            apply: [
                a_partition_that_was_never_written_is_empty_at_zero,
                an_older_epoch_cannot_open_a_partition,
                a_newer_epoch_takes_a_partition_and_gets_its_offset,
                an_epoch_is_remembered_before_anything_is_written,
                epochs_and_offsets_of_many_digits_compare_as_numbers,
                a_write_moves_the_store_to_its_offset,
                acknowledgements_alone_do_not_move_the_offset,
                a_write_from_elsewhere_is_told_where_the_store_is_and_changes_nothing,
                a_write_of_an_older_epoch_is_refused_and_changes_nothing,
                one_of_many_writes_at_the_same_offset_is_done,
                a_reset_empties_the_partition_and_its_own_changes_stay,
                rows_from_before_a_reset_are_never_visible_again,
                a_reset_that_is_refused_empties_nothing,
                changes_of_one_write_take_effect_in_order,
            ]
            rows: [
                boxes_are_answered_in_the_order_of_the_question,
                a_removed_box_is_absent,
                own_and_shared_rows_of_one_number_are_separate,
                rows_are_answered_in_the_order_of_the_question,
                a_dropped_row_is_removed_and_others_stay,
                rows_may_be_empty_and_have_any_bytes,
                a_shared_row_is_removed_with_its_last_reference,
                further_references_keep_the_stored_row,
                releasing_a_missing_row_is_no_error,
                a_removed_shared_row_can_be_added_again,
                boxes_are_reclaimable_by_the_hour_the_earliest_first,
                a_moved_or_removed_box_is_not_reclaimable_by_its_earlier_hour,
                no_more_boxes_are_reclaimable_than_asked_for,
                every_read_returns_the_applied_offset,
            ]
            whole: [
                a_random_walk_agrees_with_a_naive_model,
                partitions_do_not_see_each_other,
                a_large_row_is_returned_whole,
                thousands_of_changes_are_one_write,
                a_store_opened_again_is_as_it_was,
                reads_beside_writes_see_whole_writes_only,
            ]
        }
    };
}

crate::inbox_properties! { conformance_exports }

/// An engine for the suite.
pub type InboxFactory = dyn Opens<dyn Inbox>;
pub type OpenInbox = Opened<dyn Inbox>;
