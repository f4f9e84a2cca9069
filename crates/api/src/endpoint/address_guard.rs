//! Allow and deny rules for the destinations of callbacks, as pure checks of host names and addresses.
//!
//! An `allow` entry overrides `deny`. A destination that matches neither list is allowed. Link-local, metadata-service, multicast and
//! reserved addresses are denied by default; an `allow` entry lifts that. To allow only a few destinations, deny `0.0.0.0/0` and `::/0`.
//!
//! URLs that devices register are untrusted. For them, loopback and all non-public networks are denied too ([`AddressGuard::for_devices`]).
//!
//! A host name can resolve to any address. Therefore each attempt checks the address that it dials.

use std::net::{IpAddr, Ipv4Addr};

/// Destinations that every callback is denied, unless an `allow` entry names them.
const DENIED_BY_DEFAULT: &[&str] = &[
    // "This network", and the unspecified address, which reaches this machine.
    "0.0.0.0/8",
    "::/128",
    // Link-local addresses, including the metadata services of most clouds.
    "169.254.0.0/16",
    "fe80::/10",
    // Other metadata services: AWS over IPv6, Alibaba Cloud, the older one of Oracle Cloud, the Azure host service, and the name that
    // Google uses.
    "fd00:ec2::254/128",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "168.63.129.16/32",
    "metadata.google.internal",
    // Multicast and broadcast.
    "224.0.0.0/4",
    "255.255.255.255/32",
    "ff00::/8",
];

/// Further destinations that URLs of devices are denied: this machine and private networks.
const DENIED_TO_DEVICES: &[&str] = &[
    // Loopback.
    "127.0.0.0/8",
    "::1/128",
    // Private networks, IPv6 unique local addresses, and the deprecated site-local ones.
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fec0::/10",
    // Carrier-grade NAT. Clouds and overlay networks use these addresses as private ones.
    "100.64.0.0/10",
    // IETF protocol assignments, benchmark networks, and reserved addresses.
    "192.0.0.0/24",
    "198.18.0.0/15",
    "240.0.0.0/4",
    // Translated or tunnelled IPv4 addresses that this module does not unwrap.
    "::ffff:0:0:0/96",
    "2001::/32",
];

/// NAT64 prefixes: the well-known one and the local-use one. Their addresses end with the IPv4 address that the translator reaches.
const NAT64_PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
const NAT64_OWN_PREFIX: [u16; 3] = [0x64, 0xff9b, 1];
/// The 6to4 prefix. The IPv4 address follows it.
const SIX_TO_FOUR_PREFIX: u16 = 0x2002;

/// Checks host names and addresses. Built once from the configuration.
#[derive(Debug, Clone)]
pub struct AddressGuard {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is not a valid rule: write an address, a range such as 10.0.0.0/8, or a name such as *.example.com")]
pub struct BadRule {
    pub entry: String,
}

/// The destination is denied to callbacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the destination is not allowed: {0}")]
pub struct Forbidden(pub String);

impl Default for AddressGuard {
    fn default() -> Self {
        Self::new(&[], &[]).expect("the built-in rules are well formed")
    }
}

impl AddressGuard {
    /// Builds the guard from the entries of `[callbacks] allow` and `deny`: addresses, ranges, or names. A leading `*.` matches all
    /// subdomains.
    pub fn new(allow: &[String], deny: &[String]) -> Result<Self, BadRule> {
        let by_default = DENIED_BY_DEFAULT.iter().copied();
        let deny = by_default.chain(deny.iter().map(String::as_str)).map(Rule::parse).collect::<Result<_, _>>()?;
        let allow = allow.iter().map(|entry| Rule::parse(entry)).collect::<Result<_, _>>()?;
        Ok(Self { allow, deny })
    }

    /// Builds the guard for URLs of registered devices, from the entries of `[horn] allow` and `[callbacks] deny`. `[callbacks] allow` has
    /// no effect on devices.
    pub fn for_devices(allow: &[String], deny: &[String]) -> Result<Self, BadRule> {
        let mut guard = Self::new(allow, deny)?;
        let private = DENIED_TO_DEVICES.iter().copied().map(Rule::parse).collect::<Result<Vec<_>, _>>()?;
        guard.deny.extend(private);
        Ok(guard)
    }

    /// The guard for URLs of devices without any configuration.
    pub fn default_for_devices() -> Self {
        Self::for_devices(&[], &[]).expect("the built-in rules are well formed")
    }

    /// Checks the host of a URL before it is resolved: an IP literal as an address, anything else by name only.
    pub fn check_host(&self, host: &str) -> Result<(), Forbidden> {
        let name = normal_name(host);
        match name.parse::<IpAddr>() {
            Ok(address) => self.judge(None, Some(address)),
            Err(_) => self.judge(Some(&name), None),
        }
    }

    /// Checks the address that is about to be dialled for a host.
    pub fn check_dialled(&self, host: &str, address: IpAddr) -> Result<(), Forbidden> {
        self.judge(Some(&normal_name(host)), Some(address))
    }

    fn judge(&self, name: Option<&str>, address: Option<IpAddr>) -> Result<(), Forbidden> {
        let address = address.map(unwrapped);
        let matches = |rule: &Rule| {
            name.is_some_and(|name| rule.matches_name(name))
                || address.is_some_and(|address| rule.matches_address(address))
        };
        if self.allow.iter().any(matches) || !self.deny.iter().any(matches) {
            return Ok(());
        }
        Err(Forbidden(match (name, address) {
            (Some(name), Some(address)) if name.parse() != Ok(address) => format!("{address}, the address of {name}"),
            (_, Some(address)) => address.to_string(),
            (name, None) => name.unwrap_or_default().to_owned(),
        }))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Range4 {
        network: u32,
        mask: u32,
    },
    Range6 {
        network: u128,
        mask: u128,
    },
    Name(String),
    /// All subdomains of a name, without the name itself.
    Below(String),
}

impl Rule {
    fn parse(entry: &str) -> Result<Self, BadRule> {
        let bad = || BadRule { entry: entry.to_owned() };
        let text = entry.trim();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => {
                // `u32::parse` would accept a plus sign.
                let bits = Some(bits).filter(|bits| bits.bytes().all(|b| b.is_ascii_digit()));
                (address, Some(bits.and_then(|bits| bits.parse::<u32>().ok()).ok_or_else(bad)?))
            }
            None => (text, None),
        };
        match (address.parse::<IpAddr>(), bits) {
            (Ok(IpAddr::V4(address)), bits) => {
                let bits = Some(bits.unwrap_or(32)).filter(|bits| *bits <= 32).ok_or_else(bad)?;
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                Ok(Self::Range4 { network: u32::from(address) & mask, mask })
            }
            (Ok(IpAddr::V6(address)), bits) => {
                let bits = Some(bits.unwrap_or(128)).filter(|bits| *bits <= 128).ok_or_else(bad)?;
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                Ok(Self::Range6 { network: u128::from(address) & mask, mask })
            }
            (Err(_), Some(_)) => Err(bad()),
            (Err(_), None) => Self::parse_name(text).ok_or_else(bad),
        }
    }

    fn parse_name(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = normal_name(name);
        let is_label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        // A name of digits and dots is a mistyped address.
        let is_name = name.split('.').all(is_label) && !name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        is_name.then_some(if below { Self::Below(name) } else { Self::Name(name) })
    }

    fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Name(rule) => rule == name,
            Self::Below(rule) => name.strip_suffix(rule.as_str()).is_some_and(|above| above.ends_with('.')),
            Self::Range4 { .. } | Self::Range6 { .. } => false,
        }
    }

    fn matches_address(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::Range4 { network, mask }, IpAddr::V4(address)) => u32::from(address) & mask == *network,
            (Self::Range6 { network, mask }, IpAddr::V6(address)) => u128::from(address) & mask == *network,
            _ => false,
        }
    }
}

/// The host in lower case, without the brackets of an IPv6 address and without the dot at the end of a fully qualified name.
fn normal_name(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The IPv4 address that an IPv6 address embeds, or the address itself.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let (bits, segments) = (u128::from(six), six.segments());
    let last_four = Ipv4Addr::from(bits as u32);
    let is_translated = segments[..6] == NAT64_PREFIX || segments[..3] == NAT64_OWN_PREFIX;
    // IPv4-compatible addresses begin with 96 zero bits. The smallest values, such as ::1, belong to IPv6 itself.
    let is_compatible = bits >> 32 == 0 && bits > u128::from(u16::MAX);
    if six.to_ipv4_mapped().is_some() || is_translated || is_compatible {
        IpAddr::V4(last_four)
    } else if segments[0] == SIX_TO_FOUR_PREFIX {
        IpAddr::V4(Ipv4Addr::from((bits >> 80) as u32))
    } else {
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guard(allow: &[&str], deny: &[&str]) -> AddressGuard {
        let owned = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        AddressGuard::new(&owned(allow), &owned(deny)).unwrap()
    }

    fn dialled(guard: &AddressGuard, host: &str, address: &str) -> bool {
        guard.check_dialled(host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn by_default_only_link_local_metadata_and_reserved_addresses_are_denied() {
        let guard = AddressGuard::default();
        for address in ["127.0.0.1", "10.1.2.3", "192.168.1.1", "8.8.8.8", "::1", "2001:db8::1", "fd00::1"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
        assert!(guard.check_host("metadata.google.internal").is_err());
        assert!(guard.check_host("Metadata.Google.Internal.").is_err());
    }

    #[test]
    fn an_ipv4_address_embedded_in_an_ipv6_address_is_checked_as_ipv4() {
        let guard = AddressGuard::default();
        for address in [
            "::ffff:169.254.169.254",
            "[::ffff:a9fe:a9fe]",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
        for address in ["::1", "2002:7f00:1::", "64:ff9b:2::169.254.169.254"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
        assert!(guard.check_host("::ffff:127.0.0.1").is_ok());
    }

    #[test]
    fn an_allowed_name_that_resolves_to_a_denied_address_is_refused_at_dial_time() {
        let guard = AddressGuard::default();
        assert!(guard.check_host("hooks.example.com").is_ok());
        let refusal = guard.check_dialled("hooks.example.com", "169.254.169.254".parse().unwrap()).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the destination is not allowed: 169.254.169.254, the address of hooks.example.com"
        );
        assert!(dialled(&guard, "hooks.example.com", "203.0.113.9"));
    }

    #[test]
    fn urls_of_devices_reach_the_public_network_only() {
        let guard = AddressGuard::default_for_devices();
        for address in [
            "127.0.0.1",
            "127.255.255.254",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "240.0.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "::",
            "::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "[::ffff:a01:203]",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:c0a8:101::1",
            "2001:0:1::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
            let bare = address.trim_matches(['[', ']']);
            assert!(!dialled(&guard, "push.example.com", bare), "{address} by a name");
        }
        for address in ["8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1", "2a00::1"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn only_an_allow_entry_for_devices_lifts_a_denial_for_devices() {
        let own = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        let guard = AddressGuard::for_devices(&own(&["10.1.0.0/16", "*.lan"]), &own(&["203.0.113.0/24"])).unwrap();
        assert!(guard.check_host("10.1.2.3").is_ok());
        assert!(guard.check_host("::ffff:10.1.2.3").is_ok());
        assert!(dialled(&guard, "push.lan", "192.168.0.1"));
        for address in ["10.2.0.1", "127.0.0.1", "203.0.113.9"] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
    }

    #[test]
    fn allow_entries_override_deny_entries() {
        let guard = guard(&["10.1.0.0/16", "*.corp.example", "169.254.7.7"], &["0.0.0.0/0", "::/0"]);
        assert!(dialled(&guard, "a", "10.1.255.1"));
        assert!(!dialled(&guard, "a", "10.2.0.1"));
        assert!(!dialled(&guard, "a", "2001:db8::1"));
        assert!(dialled(&guard, "hook.corp.example", "192.168.0.1"));
        assert!(dialled(&guard, "deep.hook.CORP.example", "192.168.0.1"));
        assert!(!dialled(&guard, "corp.example", "192.168.0.1"), "`*.` does not match the name itself");
        assert!(!dialled(&guard, "evilcorp.example", "192.168.0.1"));
        assert!(dialled(&guard, "a", "169.254.7.7"), "an allow entry names it");
    }

    #[test]
    fn a_denied_name_is_denied_at_any_address() {
        let guard = guard(&[], &["internal", "*.internal"]);
        assert!(guard.check_host("internal").is_err());
        assert!(guard.check_host("db.internal").is_err());
        assert!(!dialled(&guard, "db.internal", "8.8.8.8"));
        assert!(guard.check_host("internal.example.com").is_ok());
    }

    #[test]
    fn a_malformed_entry_is_reported() {
        for entry in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/+8", "a b", "*", "*.", "-/3", "10.0.0.256", "x/8"]
        {
            let error = AddressGuard::new(&[entry.to_owned()], &[]).unwrap_err();
            assert_eq!(error.entry, entry);
        }
    }

    proptest! {
        #[test]
        fn a_range_matches_exactly_the_addresses_with_its_prefix(network: u32, bits in 0u32..=32, address: u32) {
            let rule = Rule::parse(&format!("{}/{bits}", Ipv4Addr::from(network))).unwrap();
            let same = (0..bits).all(|bit| (network ^ address) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(rule.matches_address(IpAddr::V4(address.into())), same);
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = Rule::parse(&text);
            let _ = AddressGuard::default().check_host(&text);
        }
    }
}
