//! Checks that all nodes have the same internal key, without revealing it.
//!
//! Every member publishes a check value: an HMAC of its name and incarnation, keyed with its internal key. A node with the same key
//! computes the same value. A node with another key would own shards that no other node can reach, so it must not stay a member.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use whimbrel_model::ports::{Member, Node};

/// The domain separator of the check value, with the version of its layout.
const PURPOSE: &str = "whimbrel internal key check 1";

/// Another live node has a different internal key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the `internal_key` of this node differs from that of node {node} (`{name}`): set the same key on every node")]
pub struct OtherKey {
    pub node: u16,
    pub name: String,
}

/// Computes and compares check values with the internal key of this node.
#[derive(Clone)]
pub struct KeyCheck {
    keyed: Hmac<Sha256>,
}

impl KeyCheck {
    /// `None` counts as an empty key: nodes without a key match each other.
    pub fn new(internal_key: Option<&str>) -> Self {
        let key = internal_key.unwrap_or_default().as_bytes();
        Self { keyed: Hmac::new_from_slice(key).expect("HMAC takes a key of any length") }
    }

    /// The member with its check value. Name and incarnation must be as they are published.
    pub(super) fn signed(&self, member: Member) -> Member {
        let key_check = self.value_for(&member);
        Member { key_check, ..member }
    }

    /// Fails if a member has another key. Members of older versions publish no check value and are skipped.
    pub(super) fn compare(&self, nodes: &[Node]) -> Result<(), OtherKey> {
        let differs = |node: &&Node| !node.member.key_check.is_empty() && !self.agrees(&node.member);
        match nodes.iter().find(differs) {
            Some(other) => Err(OtherKey { node: other.number, name: other.member.name.clone() }),
            None => Ok(()),
        }
    }

    fn agrees(&self, member: &Member) -> bool {
        member.key_check == self.value_for(member)
    }

    fn value_for(&self, member: &Member) -> String {
        let mut mac = self.keyed.clone();
        mac.update(format!("{PURPOSE}\n{}\n{}", member.incarnation, member.name).as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
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
    fn nodes_of_one_key_agree_and_another_key_or_none_does_not() {
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
    fn a_check_value_is_of_one_member_and_shows_no_key() {
        let (one, other) = (node(1, Some("secret")).member, node(2, Some("secret")).member);
        assert_ne!(one.key_check, other.key_check);
        assert_eq!(one.key_check.len(), 64);
        let copied = Node { number: 3, member: Member { key_check: one.key_check, ..other } };
        assert!(KeyCheck::new(Some("secret")).compare(&[copied]).is_err(), "a value of another member proves nothing");
        assert_eq!(format!("{:?}", KeyCheck::new(Some("secret"))), "KeyCheck(…)");
    }

    #[test]
    fn a_member_of_an_older_binary_is_left_out() {
        let older = Node { number: 1, member: Member { name: "n1".to_owned(), ..Member::default() } };
        assert_eq!(KeyCheck::new(Some("secret")).compare(&[older]), Ok(()));
    }
}
