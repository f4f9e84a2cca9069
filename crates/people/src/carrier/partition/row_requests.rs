//! The reads of rows that are in progress, each with its purpose.

use std::collections::HashMap;

use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::RowKey;

use super::inbox_query::PendingView;
use super::{CarrierEffect, RowsToken};

#[derive(Default)]
pub(super) struct RowRequests {
    requests: HashMap<RowsToken, RowRequest>,
    last: RowsToken,
}

pub(super) struct RowRequest {
    /// The offset of the store at the time of the request. A result at a lower offset has lost writes.
    pub saved: u64,
    pub purpose: RowPurpose,
}

pub(super) enum RowPurpose {
    Page(SessionPage),
    Ask(Box<PendingView>),
}

/// Stored messages that are read for one session.
pub(super) struct SessionPage {
    pub uid: Uid,
    pub gateway: GatewayId,
    pub session: u64,
    pub seqs: Vec<u64>,
    /// A retry of messages that were sent before.
    pub is_again: bool,
}

impl RowRequests {
    /// Requests rows from the store, which is at `saved`.
    pub fn request(&mut self, saved: u64, purpose: RowPurpose, keys: Vec<RowKey>) -> (RowsToken, CarrierEffect) {
        self.last += 1;
        let is_page = matches!(purpose, RowPurpose::Page(_));
        self.requests.insert(self.last, RowRequest { saved, purpose });
        (self.last, CarrierEffect::Rows { token: self.last, keys, is_page })
    }

    pub fn take(&mut self, token: RowsToken) -> Option<RowRequest> {
        self.requests.remove(&token)
    }
}
