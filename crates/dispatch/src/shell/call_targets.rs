//! The targets of a subscription's calls, one for each topic of the messages.

use std::collections::HashMap;
use std::sync::Arc;

use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_catalogue::topics::Registry;
use whimbrel_model::ports::{Call, CallTarget};
use whimbrel_model::subscription::{Endpoint, TIMEOUT_DEFAULT};

use crate::line_set::OutgoingMessage;

#[derive(Default)]
pub(super) struct CallTargets {
    targets: HashMap<Arc<str>, Arc<CallTarget>>,
}

impl CallTargets {
    /// Forgets all targets: the subscription or a topic has changed.
    pub fn clear(&mut self) {
        self.targets.clear();
    }

    /// The target of calls with messages of a topic.
    pub fn of(&mut self, subscription: &Subscription, topic: &Arc<str>, registry: &Registry) -> Arc<CallTarget> {
        if let Some(target) = self.targets.get(topic) {
            return Arc::clone(target);
        }
        let spec = &subscription.stored.spec;
        let of_topic = || registry.get(topic).and_then(|topic| topic.stored.workers.clone());
        let endpoint = spec.endpoint.clone().unwrap_or_else(|| Endpoint {
            url: None,
            timeout_ms: TIMEOUT_DEFAULT.as_millis() as u64,
            connect_timeout_ms: None,
            headers: Vec::new(),
        });
        let target = Arc::new(CallTarget {
            subscription: subscription.name.to_string(),
            endpoint,
            envelope: spec.envelope,
            secrets: spec.secrets.clone(),
            workers: spec.workers.clone().or_else(of_topic),
        });
        self.targets.insert(Arc::clone(topic), Arc::clone(&target));
        target
    }
}

pub(super) fn call(outgoing: &OutgoingMessage, target: Arc<CallTarget>) -> Call {
    let message = &outgoing.message;
    Call {
        target,
        topic: Arc::clone(&message.topic),
        partition: message.place.index,
        offset: message.offset,
        attempt: outgoing.attempt,
        id: message.id.clone(),
        published_at: message.published_at,
        record: message.record.clone(),
        rule: message.rule.clone(),
    }
}
