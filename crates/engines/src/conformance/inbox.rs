//! What every [`Inbox`] must hold.
//!
//! An engine takes part by a [`Factory`]. Properties begin with an empty store and use its partitions from zero on: where one server serves
//! all tests, the factory gives each instance a prefix of its own. [`naive::Naive`] is what a partition is, written plainly; engines are
//! compared with it.

use std::any::Any;
use std::sync::Arc;

use whimbrel_model::ports::{Inbox, PortFuture};

mod apply;
pub mod naive;
mod rows;
mod scene;
mod whole;

/// Every property, by the file that has it.
#[doc(hidden)]
#[macro_export]
macro_rules! inbox_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            apply: [
                a_partition_that_nobody_wrote_is_at_zero_and_empty,
                an_older_epoch_cannot_open_a_partition,
                a_newer_epoch_takes_a_partition_and_learns_where_it_is,
                an_epoch_is_remembered_before_anything_is_written,
                epochs_and_offsets_of_many_digits_compare_as_numbers,
                a_write_moves_the_store_to_its_offset,
                acknowledgements_alone_leave_the_store_where_it_was,
                a_write_from_elsewhere_is_told_where_the_store_is_and_changes_nothing,
                a_write_of_an_older_epoch_is_refused_and_changes_nothing,
                one_of_many_writes_from_the_same_place_is_done,
                a_reset_empties_the_partition_and_its_own_changes_stay,
                what_stood_before_a_reset_never_comes_back,
                a_reset_that_is_refused_empties_nothing,
                changes_of_one_write_take_effect_in_order,
            ]
            rows: [
                boxes_are_answered_in_the_order_of_the_question,
                a_box_that_is_no_more_is_not_there,
                rows_of_users_and_shared_ones_of_one_number_are_apart,
                rows_are_answered_in_the_order_of_the_question,
                a_row_that_was_dropped_is_gone_and_others_stay,
                rows_may_be_empty_and_have_any_bytes,
                a_shared_row_goes_with_its_last_reference,
                references_of_a_row_that_is_there_are_added_and_the_row_stays,
                releasing_what_is_not_there_is_no_error,
                a_shared_row_that_went_can_come_again,
                boxes_are_reclaimable_by_the_hour_the_earliest_first,
                a_box_that_moved_or_went_is_not_reclaimable_by_its_earlier_hour,
                no_more_boxes_are_reclaimable_than_asked_for,
                every_read_says_where_the_store_was,
            ]
            whole: [
                a_random_walk_agrees_with_a_naive_model,
                partitions_do_not_see_each_other,
                a_large_row_comes_back_whole,
                thousands_of_changes_are_one_write,
                a_store_opened_again_is_as_it_was,
                reads_beside_writes_see_whole_writes_only,
            ]
        }
    };
}

crate::inbox_properties! { conformance_exports }

/// Makes stores of inboxes of one engine for the suite.
pub trait Factory: Send + Sync {
    /// An instance of the engine on an empty store of its own, or under a prefix of its own on one that is shared.
    fn open(&self) -> PortFuture<'_, OpenInbox>;

    /// Ends the instance, of which the suite has dropped every other handle, and opens its store anew.
    fn reopen(&self, inbox: OpenInbox) -> PortFuture<'_, OpenInbox>;

    /// Why the suite cannot run here, where that is so and is allowed.
    fn skip(&self) -> Option<String> {
        None
    }
}

/// One open instance. What the engine's factory needs to open it again is in `store`.
pub struct OpenInbox {
    pub inbox: Arc<dyn Inbox>,
    pub store: Arc<dyn Any + Send + Sync>,
}
