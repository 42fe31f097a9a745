//! What rdma-probe shows, compared with what the C tools show.

use crate::Test;
use crate::support::{Device, Run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::process::Command;

pub const TESTS: &[Test] = &[
    ("shows::the_list_of_ibv_devices", list),
    ("shows::every_field_of_ibv_devinfo", info),
    ("shows::the_gids_of_ibv_devinfo", gids),
    ("shows::text_and_json_alike", text_and_json),
    ("shows::kernel_commands", trace),
];

fn list(_: &Device) {
    let c = Run::start(&mut Command::new("ibv_devices")).end().expect(0);
    let ours = Run::probe(["list", "--json"]).expect(0).json();
    let ours: Vec<(String, String)> = ours["result"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| (text(&d["name"]), text(&d["node_guid"]).replace(':', "")))
        .collect();
    let theirs: Vec<(String, String)> = c
        .stdout
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(char::is_whitespace).and(Some(line.split_whitespace().collect::<Vec<_>>())))
        .filter(|words| words.len() == 2)
        .map(|words| (words[0].to_owned(), words[1].to_owned()))
        .collect();
    assert_eq!(sorted(ours), sorted(theirs));
}

/// Every name that `ibv_devinfo -v` prints, with what we say for it. Names we do not have fail the test, unless listed.
fn info(device: &Device) {
    let c = devinfo(device);
    let ours = Run::probe(["info", &device.name, "--json"]).expect(0).json();
    let d = &ours["result"]["devices"][0];
    let (attributes, port) = (&d["attributes"], &d["port_details"][0]["attributes"]);
    let mut compared = 0;
    for (name, theirs) in c {
        let same = match name.as_str() {
            "hca_id" => theirs == text(&d["name"]),
            "fw_ver" => d["fw_version"].is_null() && theirs == "0.0.0" || theirs == text(&d["fw_version"]),
            "node_guid" | "sys_image_guid" => theirs == text(&d[&name]),
            "board_id" => theirs == text(&d["board_id"]),
            "num_comp_vectors" => number(&theirs) == d["num_comp_vectors"].as_u64(),
            "state" => {
                theirs.trim_start_matches("PORT_")
                    == format!("{} ({})", text(&d["port_details"][0]["state"]), port["state"])
            }
            "phys_state" => in_brackets(&theirs) == port["phys_state"].as_u64(),
            "atomic_cap" => in_brackets(&theirs) == attributes["atomic_cap"].as_u64(),
            "active_width" | "active_speed" => in_brackets(&theirs) == port[&name].as_u64(),
            "max_vl_num" => in_brackets(&theirs) == port["max_vl_num"].as_u64(),
            "link_layer" => theirs == text(&port["link_layer"]),
            "transport" => theirs == format!("{} (0)", text(&d["transport"])),
            "completion timestamp_mask" => number(&theirs) == attributes["completion_timestamp_mask"].as_u64(),
            "hca_core_clock" => number(theirs.trim_end_matches("kHZ")) == attributes["hca_core_clock_khz"].as_u64(),
            "max_cq_count" => number(&theirs) == attributes["max_cq_moderation_count"].as_u64(),
            "max_cq_period" => number(&theirs) == attributes["max_cq_moderation_period_us"].as_u64(),
            "port" => number(&theirs) == d["port_details"][0]["port"].as_u64(),
            "max_tso"
            | "rx_hash_function"
            | "rx_hash_fields_mask"
            | "qp_rate_limit_min"
            | "qp_rate_limit_max"
            | "Unknown flags" => continue,
            // The other test's.
            _ if name.starts_with("GID[") => continue,
            // An empty heading.
            _ if theirs.is_empty() => continue,
            _ => {
                let ours = if attributes[&name].is_null() { &port[&name] } else { &attributes[&name] };
                assert!(!ours.is_null(), "ibv_devinfo shows {name}: {theirs}, rdma-probe does not");
                number(&theirs) == ours.as_u64()
            }
        };
        assert!(same, "{name}: ibv_devinfo says {theirs:?}; rdma-probe says {attributes:#} {port:#}");
        compared += 1;
    }
    assert!(compared > 45, "only {compared} fields were compared");
}

fn gids(device: &Device) {
    let c = devinfo(device);
    let theirs: Vec<(String, String)> = c
        .iter()
        .filter_map(|(name, value)| {
            // Of InfiniBand, whose GIDs have one type only, it is shown with every zero and without the type.
            let zeros = value.parse::<Ipv6Addr>().map_or(value.clone(), |gid| format!("{gid}, IB"));
            Some((name.strip_prefix("GID[")?.trim_end_matches(']').trim().to_owned(), zeros))
        })
        .collect();
    let ours = Run::probe(["gids", &device.name, "--json"]).expect(0).json();
    let ours: Vec<(String, String)> = ours["result"]["tables"][0]["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["index"].to_string(), format!("{}, {}", text(&e["gid"]), text(&e["type"]))))
        .collect();
    assert!(!ours.is_empty());
    assert_eq!(ours, theirs);
}

/// The same run as text: each value of the JSON is in it.
fn text_and_json(device: &Device) {
    let text_output = Run::probe(["info", &device.name]).expect(0).stdout;
    let shown: BTreeMap<&str, &str> = text_output
        .lines()
        .filter_map(|l| l.split_once(':').map(|(name, value)| (name.trim(), value.trim())))
        .collect();
    let json = Run::probe(["info", &device.name, "--json"]).expect(0).json();
    for (name, value) in json["result"]["devices"][0]["attributes"].as_object().unwrap() {
        let shown = shown.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in the text"));
        if let Some(expected) = value.as_u64() {
            assert_eq!(in_brackets(shown).or_else(|| number(shown)), Some(expected), "{name}");
        }
    }
}

fn trace(device: &Device) {
    let ended = Run::probe(["ping", "--loopback", "-n", "10", "-d", &device.name, "--trace=-"]).expect(0);
    for command in ["CREATE", "REG_MR", "MODIFY_QP", "qp_state=3", "DESTROY"] {
        assert!(ended.stderr.contains(command), "no {command} in {ended:#?}");
    }
}

/// Names and values of the first port's part, and of all above it.
fn devinfo(device: &Device) -> Vec<(String, String)> {
    let c = Run::start(Command::new("ibv_devinfo").args(["-v", "-d", &device.name, "-i", "1"])).end().expect(0);
    let mut fields = Vec::new();
    for line in c.stdout.lines() {
        if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    fields
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// `1024 (3)` is a name of 3, and so is `ACTIVE (3)`.
fn in_brackets(text: &str) -> Option<u64> {
    text.rsplit_once('(')?.1.strip_suffix(')')?.parse().ok()
}

/// In decimal or hexadecimal; of `1024 (3)`, the 1024.
fn number(text: &str) -> Option<u64> {
    let word = text.split_whitespace().next()?;
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}
