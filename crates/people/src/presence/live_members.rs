//! Live gateways and proxies: the part of the cluster view that presence needs.

use std::sync::Arc;

use whimbrel_model::people::GatewayId;

use super::settings::NodeLocation;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveMembers {
    /// Gateways and their internal addresses.
    pub gateways: Vec<(GatewayId, Arc<str>)>,
    /// The internal addresses of the proxies, sorted.
    pub proxies: Vec<String>,
}

impl LiveMembers {
    /// The two proxies of a gateway: its own process if it is one, and another. The node number distributes gateways over the proxies. A
    /// proxy has no state, so a gateway without any proxy in the view spreads its packets itself.
    pub fn paths(&self, me: &str, node: u16) -> [NodeLocation; 2] {
        let others: Vec<&String> = self.proxies.iter().filter(|address| *address != me).collect();
        let other = |step: usize| match others.len() {
            0 => NodeLocation::ThisProcess,
            count => NodeLocation::At(others[(usize::from(node) + step) % count].clone()),
        };
        if self.proxies.iter().any(|address| address == me) {
            [NodeLocation::ThisProcess, other(0)]
        } else {
            [other(0), other(1)]
        }
    }

    /// A proxy through which a query can reach that gateway if the direct connection fails.
    pub fn detour(&self, me: &str, gateway: &str, attempt: u32) -> Option<&str> {
        let mut others = self.proxies.iter().filter(|address| *address != me && *address != gateway);
        let count = others.clone().count();
        if count == 0 { None } else { others.nth(attempt as usize % count).map(String::as_str) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn living(proxies: &[&str]) -> LiveMembers {
        LiveMembers { gateways: Vec::new(), proxies: proxies.iter().map(|address| (*address).to_owned()).collect() }
    }

    #[test]
    fn a_single_gateway_uses_itself_for_both_paths() {
        assert_eq!(living(&[]).paths("a", 1), [NodeLocation::ThisProcess, NodeLocation::ThisProcess]);
        assert_eq!(living(&["a"]).paths("a", 1), [NodeLocation::ThisProcess, NodeLocation::ThisProcess]);
    }

    #[test]
    fn the_two_paths_use_different_proxies_if_there_are_two() {
        assert_eq!(living(&["a", "b"]).paths("a", 1), [NodeLocation::ThisProcess, NodeLocation::At("b".to_owned())]);
        assert_eq!(
            living(&["b", "c"]).paths("a", 1),
            [NodeLocation::At("c".to_owned()), NodeLocation::At("b".to_owned())]
        );
    }

    #[test]
    fn a_detour_is_neither_this_node_nor_the_gateway() {
        assert_eq!(living(&["a", "b"]).detour("a", "b", 1), None);
        assert_eq!(living(&["a", "b", "c"]).detour("a", "b", 1), Some("c"));
    }
}
