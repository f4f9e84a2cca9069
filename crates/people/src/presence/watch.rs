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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::ledger::Todo;
    use crate::presence::packet::{Answer, Packet};

    const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 10 };

    #[test]
    fn who_is_not_heard_is_named_from_when_it_is_stale_until_it_is_heard() {
        let settings = PresenceSettings::default();
        let (mut ledger, mut watch) = (Ledger::new(settings.ledger), Watch::new(0, &settings));
        let todo = ledger.living(&[(GATEWAY, "g".into())], 0);
        watch.look(&ledger, 50);
        assert!(watch.unheard.contains(&GATEWAY) && !watch.is_told, "its picture may be on its way");
        let [Todo::Ask(question)] = &todo[..] else { panic!("{todo:?}") };
        ledger.answered(question.ask, GATEWAY, Answer::Picture { as_of: 1, sessions: Vec::new() }, 100);
        watch.look(&ledger, 3_000);
        assert!(watch.unheard.is_empty() && !watch.is_told);
        watch.look(&ledger, 3_001);
        assert!(watch.unheard.contains(&GATEWAY) && watch.is_told);
        ledger.packet(Packet { gateway: GATEWAY, address: "g".into(), number: 2, news: Vec::new() }, 4_000);
        watch.look(&ledger, 4_000);
        assert!(watch.unheard.is_empty() && !watch.is_told);
    }

    #[test]
    fn a_picture_that_does_not_come_is_told_of_after_a_while() {
        let settings = PresenceSettings::default();
        let (mut ledger, mut watch) = (Ledger::new(settings.ledger), Watch::new(0, &settings));
        ledger.living(&[(GATEWAY, "g".into())], 0);
        watch.look(&ledger, 0);
        watch.look(&ledger, 9_999);
        assert!(!watch.is_told);
        watch.look(&ledger, 10_000);
        assert!(watch.is_told);
    }
}
