//! Who keeps a shard from being fresh: gateways that have their lease and are not heard, named in the log and in a metric for as long as it
//! lasts. It tells people; it decides nothing.

use std::collections::BTreeSet;

use whimbrel_model::people::GatewayId;

use super::figures::unheard_gauge;
use super::ledger::Ledger;
use super::settings::PresenceSettings;

pub(super) struct Watch {
    shard: u32,
    stale_after_ms: u64,
    draw_within_ms: u64,
    /// Who is not heard, as the metric says.
    unheard: BTreeSet<GatewayId>,
    since_ms: Option<u64>,
    is_told: bool,
}

impl Watch {
    pub(super) fn new(shard: u32, settings: &PresenceSettings) -> Self {
        Self {
            shard,
            stale_after_ms: settings.stale_after.as_millis() as u64,
            draw_within_ms: settings.draw_within.as_millis() as u64,
            unheard: BTreeSet::new(),
            since_ms: None,
            is_told: false,
        }
    }

    pub(super) fn look(&mut self, ledger: &Ledger, now_ms: u64) {
        let unheard: BTreeSet<GatewayId> = ledger.unheard(now_ms.saturating_sub(self.stale_after_ms)).collect();
        self.count(&unheard);
        if unheard.is_empty() {
            if std::mem::take(&mut self.is_told) {
                tracing::info!(shard = self.shard, "a shard of presence hears every gateway again");
            }
            self.since_ms = None;
            return;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        // A picture that has not come may be on its way; who was heard and is not any more has been asked by now.
        let was_heard = ledger.undrawn().count() < unheard.len();
        let is_long = was_heard || now_ms >= since_ms + self.draw_within_ms;
        if is_long && !std::mem::replace(&mut self.is_told, true) {
            let gateways: Vec<String> = unheard.iter().map(ToString::to_string).collect();
            let (shard, gateways) = (self.shard, gateways.join(", "));
            tracing::warn!(shard, gateways, "a shard of presence is not fresh: gateways that live are not heard");
        }
    }

    fn count(&mut self, unheard: &BTreeSet<GatewayId>) {
        if self.unheard != *unheard {
            unheard.difference(&self.unheard).for_each(|gateway| unheard_gauge(*gateway).increment(1.0));
            self.unheard.difference(unheard).for_each(|gateway| unheard_gauge(*gateway).decrement(1.0));
            self.unheard.clone_from(unheard);
        }
    }
}

impl Drop for Watch {
    /// A writer that ended waits for nobody.
    fn drop(&mut self) {
        self.count(&BTreeSet::new());
    }
}
