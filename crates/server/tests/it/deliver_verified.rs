//! Callbacks verified by the library of Standard Webhooks: code of another party, with its own interpretation of the specification.

use whimbrel_client::{NewMessage, SubscriptionSettings};

use super::deliver::{Site, retrying};
use super::server::{converse, eventually};
use super::services::skip;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// The URL of the subscriber that verifies with the first secret.
fn endpoint() -> Option<String> {
    let address = "WHIMBREL_TEST_WEBHOOKS";
    if skip(&[address]) {
        return None;
    }
    Some(format!("http://{}/{}", std::env::var(address).ok()?, SECRET.replace('=', "%3D")))
}

fn signed(topic: &str, url: &str, secret: &str, envelope: &str) -> SubscriptionSettings {
    let settings = SubscriptionSettings {
        secret: Some(secret.into()),
        envelope: Some(envelope.to_owned()),
        ..SubscriptionSettings::push([topic], url)
    };
    retrying(settings, 0, "1s")
}

#[test]
fn an_independent_library_verifies_both_envelopes() {
    let Some(url) = endpoint() else { return };
    let site = Site::start(&[]);
    for envelope in ["binary", "structured"] {
        site.topic(envelope, 1);
        site.subscribe(envelope, &signed(envelope, &url, SECRET, envelope));
        // The library also requires a JSON body.
        for payload in ["{}", "\"plain\"", "{\"json\":\"tschüß\"}"] {
            site.publish(envelope, &NewMessage::new(payload).content_type("application/json").key("k"));
        }
        site.caught_up(envelope);
        let dead = converse(site.client().dead_letters(envelope, None, None)).unwrap().dead_letters;
        assert_eq!(dead, [], "{envelope}");
    }
}

#[test]
fn an_independent_library_rejects_another_secret() {
    let Some(url) = endpoint() else { return };
    let site = Site::start(&[]);
    site.topic("forged", 1);
    site.subscribe("forged", &signed("forged", &url, OTHER_SECRET, "binary"));
    site.publish("forged", &NewMessage::new("believe me"));
    eventually("the callback was refused", || {
        let dead = converse(site.client().dead_letters("forged", None, None)).unwrap().dead_letters;
        dead.first().is_some_and(|letter| letter.last_status == Some(400))
    });
}
