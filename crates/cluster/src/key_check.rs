//! Checks that nodes accept each other's internal keys, without revealing them.
//!
//! Every member publishes a check value: an HMAC of its name and incarnation, keyed with its internal key. It publishes a second one for
//! the second key that it accepts, if any. A node with the same key computes the same value. If nodes rejected each other's calls, shards
//! of one would be unreachable for the other. So a node whose keys do not match must not stay a member.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use whimbrel_model::ports::{Member, Node};

/// The domain separator of the check value, with the version of its layout.
const PURPOSE: &str = "whimbrel internal key check 1";

/// Another live node does not accept the internal key of this node, or the reverse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the `internal_key` of this node differs from that of node {node} (`{name}`): set the same key on every node, or let both nodes accept \
     both keys with `internal_key_previous`"
)]
pub struct InternalKeyMismatch {
    pub node: u16,
    pub name: String,
}

/// Computes and compares check values with the internal keys of this node.
#[derive(Clone)]
pub struct KeyCheck {
    keyed: Hmac<Sha256>,
    /// The key that this node accepts and does not present.
    previous: Option<Hmac<Sha256>>,
}

impl KeyCheck {
    /// `None` counts as an empty key: nodes without a key match each other.
    pub fn new(internal_key: Option<&str>) -> Self {
        Self { keyed: keyed(internal_key.unwrap_or_default()), previous: None }
    }

    /// Accepts a second key, while the keys of the nodes are changed one by one.
    pub fn accepting(self, previous: Option<&str>) -> Self {
        Self { previous: previous.map(keyed), ..self }
    }

    /// The member with its check values. Name and incarnation must be as they are published.
    pub(super) fn signed(&self, member: Member) -> Member {
        let key_check = value_for(&self.keyed, &member);
        let key_check_previous = self.previous.as_ref().map_or_else(String::new, |key| value_for(key, &member));
        Member { key_check, key_check_previous, ..member }
    }

    /// Fails if this node and a member would reject each other's calls. Members of older versions publish no check value and are skipped.
    pub(super) fn compare(&self, nodes: &[Node]) -> Result<(), InternalKeyMismatch> {
        let differs = |node: &&Node| !node.member.key_check.is_empty() && !self.agrees(&node.member);
        match nodes.iter().find(differs) {
            Some(other) => Err(InternalKeyMismatch { node: other.number, name: other.member.name.clone() }),
            None => Ok(()),
        }
    }

    /// Whether this node accepts the key of the member, and the member accepts the key of this node.
    fn agrees(&self, member: &Member) -> bool {
        let ours = value_for(&self.keyed, member);
        let is_previous = |key| value_for(key, member) == member.key_check;
        let accepts = ours == member.key_check || self.previous.as_ref().is_some_and(is_previous);
        accepts && (ours == member.key_check || ours == member.key_check_previous)
    }
}

fn keyed(key: &str) -> Hmac<Sha256> {
    Hmac::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length")
}

fn value_for(key: &Hmac<Sha256>, member: &Member) -> String {
    let mut mac = key.clone();
    mac.update(format!("{PURPOSE}\n{}\n{}", member.incarnation, member.name).as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for KeyCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyCheck(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, key: Option<&str>) -> Node {
        let member = Member { name: format!("n{number}"), incarnation: 7, ..Member::default() };
        Node { number, member: KeyCheck::new(key).signed(member) }
    }

    #[test]
    fn nodes_with_one_key_match_and_nodes_with_another_key_or_none_do_not() {
        let nodes = [node(1, Some("secret")), node(2, Some("secret"))];
        assert_eq!(KeyCheck::new(Some("secret")).compare(&nodes), Ok(()));
        for other in [Some("Secret"), Some(""), None] {
            let refused = KeyCheck::new(other).compare(&nodes).unwrap_err();
            assert_eq!((refused.node, &*refused.name), (1, "n1"));
        }
        assert!(KeyCheck::new(Some("secret")).compare(&[node(1, None)]).is_err());
        assert_eq!(KeyCheck::new(None).compare(&[node(1, None)]), Ok(()));
    }

    #[test]
    fn a_check_value_is_valid_for_one_member_and_reveals_no_key() {
        let (one, other) = (node(1, Some("secret")).member, node(2, Some("secret")).member);
        assert_ne!(one.key_check, other.key_check);
        assert_eq!(one.key_check.len(), 64);
        let copied = Node { number: 3, member: Member { key_check: one.key_check, ..other } };
        assert!(
            KeyCheck::new(Some("secret")).compare(&[copied]).is_err(),
            "the value of another member is not accepted"
        );
        assert_eq!(format!("{:?}", KeyCheck::new(Some("secret"))), "KeyCheck(…)");
    }

    #[test]
    fn a_member_of_an_older_version_is_skipped() {
        let older = Node { number: 1, member: Member { name: "n1".to_owned(), ..Member::default() } };
        assert_eq!(KeyCheck::new(Some("secret")).compare(&[older]), Ok(()));
    }

    #[test]
    fn nodes_that_accept_each_others_keys_match() {
        let rotating = |key: &str, previous: Option<&str>| KeyCheck::new(Some(key)).accepting(previous);
        let member = |check: &KeyCheck| Node { number: 1, member: check.signed(node(1, None).member) };
        let (old, old_too) = (rotating("old", None), rotating("old", Some("new")));
        let (new_too, new) = (rotating("new", Some("old")), rotating("new", None));
        for (one, other) in [(&old, &old_too), (&old_too, &new_too), (&new_too, &new)] {
            assert_eq!(one.compare(&[member(other)]), Ok(()));
            assert_eq!(other.compare(&[member(one)]), Ok(()));
        }
        for (one, other) in [(&old, &new), (&old, &new_too), (&old_too, &new)] {
            assert!(one.compare(&[member(other)]).is_err());
            assert!(other.compare(&[member(one)]).is_err());
        }
    }
}
