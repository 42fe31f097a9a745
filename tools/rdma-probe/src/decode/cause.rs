//! Why a work request failed: what syndrome, status and the vendor's byte say, and what usually causes it.

use ironverbs::WcStatus;
use serde::Serialize;
use softcx::Syndrome;

/// What an error completion says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cause {
    /// The syndrome.
    pub syndrome: u8,
    /// The syndrome in words.
    pub syndrome_name: String,
    /// The status that a program polls, as `RETRY_EXC_ERR`.
    pub status: String,
    /// Its number (`enum ibv_wc_status`).
    pub status_number: u32,
    /// The vendor's syndrome.
    pub vendor_syndrome: u8,
    /// What is known of the vendor's syndrome.
    pub vendor_note: String,
    /// What usually causes the error, for people.
    pub usual_causes: String,
}

/// Syndromes of error completions, and the status that the verbs have for each.
const STATUSES: [(Syndrome, WcStatus); 13] = [
    (Syndrome::LOCAL_LENGTH, WcStatus::LOC_LEN_ERR),
    (Syndrome::LOCAL_QP_OP, WcStatus::LOC_QP_OP_ERR),
    (Syndrome::LOCAL_PROTECTION, WcStatus::LOC_PROT_ERR),
    (Syndrome::FLUSH, WcStatus::WR_FLUSH_ERR),
    (Syndrome::MW_BIND, WcStatus::MW_BIND_ERR),
    (Syndrome::BAD_RESPONSE, WcStatus::BAD_RESP_ERR),
    (Syndrome::LOCAL_ACCESS, WcStatus::LOC_ACCESS_ERR),
    (Syndrome::REMOTE_INVALID_REQUEST, WcStatus::REM_INV_REQ_ERR),
    (Syndrome::REMOTE_ACCESS, WcStatus::REM_ACCESS_ERR),
    (Syndrome::REMOTE_OPERATION, WcStatus::REM_OP_ERR),
    (Syndrome::RETRY_EXCEEDED, WcStatus::RETRY_EXC_ERR),
    (Syndrome::RNR_RETRY_EXCEEDED, WcStatus::RNR_RETRY_EXC_ERR),
    (Syndrome::REMOTE_ABORTED, WcStatus::REM_ABORT_ERR),
];

impl Cause {
    /// Of these two bytes.
    pub fn of(syndrome: u8, vendor: u8) -> Self {
        let known = STATUSES.iter().find(|(s, _)| s.0 == syndrome);
        let status = known.map_or(WcStatus::GENERAL_ERR, |(_, status)| *status);
        let causes = match (known, status) {
            (None, _) => "the device gave a syndrome that has no status of its own: only the vendor can tell",
            (_, WcStatus::MW_BIND_ERR) => {
                "the region lacks MW_BIND, window, region and queue pair are of other protection domains, the range is outside \
                 the region, or the key is bound already, or not bound where it is to be invalidated"
            }
            (_, WcStatus::BAD_RESP_ERR) => {
                "the peer's answer is not one to the request: the ends disagree about a READ or an atomic, or about who is \
                 connected to whom"
            }
            (_, WcStatus::LOC_ACCESS_ERR) => "a peer's WRITE with immediate named memory here that it may not write",
            (_, WcStatus::REM_ABORT_ERR) => {
                "the peer gave the operation up: its queue pair was being torn down, or its \
                 memory could not be brought in"
            }
            // What it is, a colon, what usually causes it.
            (_, status) => {
                let text = status.meaning().unwrap_or_default();
                text.split_once(": ").map_or(text, |(_, causes)| causes)
            }
        };
        Self {
            syndrome,
            syndrome_name: Syndrome(syndrome).name().to_owned(),
            status: status.name().unwrap_or("unknown").to_owned(),
            status_number: status.0,
            vendor_syndrome: vendor,
            vendor_note: vendor_note(Syndrome(syndrome), vendor),
            usual_causes: causes.to_owned(),
        }
    }
}

/// The vendor publishes no list. What logs of adapters show beside each syndrome is known.
fn vendor_note(syndrome: Syndrome, vendor: u8) -> String {
    if vendor == 0 {
        return "none".to_owned();
    }
    if (syndrome, vendor) == (Syndrome::REMOTE_ABORTED, 0x93) {
        return "a page of on-demand memory was not there; on a shared receive queue the request is to be posted again"
            .to_owned();
    }
    if syndrome.vendor() == vendor {
        return "the one that usually comes with this syndrome".to_owned();
    }
    match Syndrome::ALL.iter().find(|other| other.vendor() == vendor) {
        Some(other) => format!("usually comes with another syndrome: {other}"),
        None => "not one that is often seen; the vendor can tell what it stands for".to_owned(),
    }
}
