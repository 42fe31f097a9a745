//! The checked-in JSON schema is that of the types. `UPDATE_SCHEMA=1 cargo test -p rdma-probe schema` writes it anew.

use crate::caps::CapsReport;
use crate::decode::DecodeReport;
use crate::gids::GidsReport;
use crate::info::InfoReport;
use crate::list::ListReport;
use crate::output::{Document, SCHEMA};
use crate::ping_report::PingReport;
use crate::watch_line::{WatchLine, WatchReport};
use schemars::JsonSchema;

/// What `--json` prints, whatever the command.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "only its schema is used")]
enum RdmaProbe {
    /// Output of `rdma-probe list --json`.
    List(Document<ListReport>),
    /// Output of `rdma-probe info --json`.
    Info(Document<InfoReport>),
    /// Output of `rdma-probe gids --json`.
    Gids(Document<GidsReport>),
    /// Output of `rdma-probe caps --json`.
    Caps(Document<CapsReport>),
    /// Output of `rdma-probe decode --json`.
    Decode(Document<DecodeReport>),
    /// Output of `rdma-probe ping --json`.
    Ping(Document<PingReport>),
    /// A line of `rdma-probe watch --json`, but for the last.
    WatchLine(WatchLine),
    /// The last line of `rdma-probe watch --json`.
    Watch(Document<WatchReport>),
}

#[test]
fn the_schema_is_that_of_the_types() {
    let generated = serde_json::to_string_pretty(&schemars::schema_for!(RdmaProbe)).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/rdma-probe.schema.json");
        std::fs::write(path, &generated).unwrap();
        return;
    }
    assert!(generated == SCHEMA, "run UPDATE_SCHEMA=1 cargo test -p rdma-probe schema, and look at the difference");
}
