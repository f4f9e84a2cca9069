//! Which gateways and proxies live, as presence needs to know it: a view of the cluster, and nothing more.

use std::sync::Arc;

use whimbrel_model::people::GatewayId;

use super::settings::Place;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Living {
    /// Gateways and where they can be asked.
    pub gateways: Vec<(GatewayId, Arc<str>)>,
    /// The internal addresses of those that spread packets, sorted.
    pub proxies: Vec<String>,
}

impl Living {
    /// The two proxies of a gateway: itself where it is one, and another where there is one. Gateways spread over the others by their
    /// numbers. Spreading needs no state, so a gateway that sees none spreads by itself.
    pub fn paths(&self, me: &str, node: u16) -> [Place; 2] {
        let others: Vec<&String> = self.proxies.iter().filter(|address| *address != me).collect();
        let other = |step: usize| match others.len() {
            0 => Place::ThisProcess,
            count => Place::At(others[(usize::from(node) + step) % count].clone()),
        };
        if self.proxies.iter().any(|address| address == me) {
            [Place::ThisProcess, other(0)]
        } else {
            [other(0), other(1)]
        }
    }

    /// A node that a question to that gateway can go through, where the straight way fails.
    pub fn detour(&self, me: &str, gateway: &str, attempt: u32) -> Option<&str> {
        let mut others = self.proxies.iter().filter(|address| *address != me && *address != gateway);
        let count = others.clone().count();
        if count == 0 { None } else { others.nth(attempt as usize % count).map(String::as_str) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn living(proxies: &[&str]) -> Living {
        Living { gateways: Vec::new(), proxies: proxies.iter().map(|address| (*address).to_owned()).collect() }
    }

    #[test]
    fn a_gateway_alone_spreads_by_itself_twice() {
        assert_eq!(living(&[]).paths("a", 1), [Place::ThisProcess, Place::ThisProcess]);
        assert_eq!(living(&["a"]).paths("a", 1), [Place::ThisProcess, Place::ThisProcess]);
    }

    #[test]
    fn the_two_paths_are_apart_where_there_are_two() {
        assert_eq!(living(&["a", "b"]).paths("a", 1), [Place::ThisProcess, Place::At("b".to_owned())]);
        assert_eq!(living(&["b", "c"]).paths("a", 1), [Place::At("c".to_owned()), Place::At("b".to_owned())]);
    }

    #[test]
    fn a_detour_is_neither_here_nor_at_the_gateway() {
        assert_eq!(living(&["a", "b"]).detour("a", "b", 1), None);
        assert_eq!(living(&["a", "b", "c"]).detour("a", "b", 1), Some("c"));
    }
}
