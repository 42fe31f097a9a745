//! Which attributes each state transition of a queue pair needs and takes (IB spec 11.2.5.2; the kernel's
//! `qp_state_table` in `drivers/infiniband/core/verbs.c`).
//!
//! The kernel answers a wrong set with a bare `EINVAL`. This table is asked first, and names what is missing or too much.

use crate::uverbs::abi::verbs::qp_type;
use crate::uverbs::attr::QpState;
use crate::uverbs::attr::qp_attr_mask as mask;
use crate::uverbs::error::{Error, Transition};

/// Transport service of a queue pair (`enum ib_qp_type`).
///
/// ```
/// assert_eq!(ironverbs::Transport::Rc.name(), "RC");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Sending end of an extended reliable connection.
    XrcSend,
    /// Receiving end of an extended reliable connection.
    XrcRecv,
}

impl Transport {
    /// The kernel's number.
    pub(super) const fn raw(self) -> u8 {
        match self {
            Self::Rc => qp_type::RC,
            Self::Uc => qp_type::UC,
            Self::Ud => qp_type::UD,
            Self::XrcSend => qp_type::XRC_INI,
            Self::XrcRecv => qp_type::XRC_TGT,
        }
    }

    /// The transport's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC send",
            Self::XrcRecv => "XRC receive",
        }
    }
}

/// What each attribute is called in [`QpUpdate`](super::attr::QpUpdate).
const NAMES: &[(u32, &str)] = &[
    (mask::STATE, "state"),
    (mask::CUR_STATE, "cur_state"),
    (mask::EN_SQD_ASYNC_NOTIFY, "en_sqd_async_notify"),
    (mask::ACCESS_FLAGS, "access"),
    (mask::PKEY_INDEX, "pkey_index"),
    (mask::PORT, "port"),
    (mask::QKEY, "qkey"),
    (mask::AV, "path"),
    (mask::PATH_MTU, "path_mtu"),
    (mask::TIMEOUT, "timeout"),
    (mask::RETRY_CNT, "retry_count"),
    (mask::RNR_RETRY, "rnr_retry"),
    (mask::RQ_PSN, "rq_psn"),
    (mask::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (mask::ALT_PATH, "alt_path"),
    (mask::MIN_RNR_TIMER, "min_rnr_timer"),
    (mask::SQ_PSN, "sq_psn"),
    (mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (mask::PATH_MIG_STATE, "path_mig_state"),
    (mask::DEST_QPN, "dest_qpn"),
];

/// The attributes that a transition needs, and those that it takes besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    required: u32,
    optional: u32,
}

fn rule(transport: Transport, from: QpState, to: QpState) -> Option<Rule> {
    use Transport::{Rc, Uc, Ud, XrcRecv, XrcSend};
    use mask::*;
    let of = |required, optional| Some(Rule { required, optional });
    match (from, to, transport) {
        (QpState::RESET, QpState::ERR, _) => None,
        (_, QpState::RESET | QpState::ERR, _) => of(0, 0),

        (QpState::RESET, QpState::INIT, Rc | Uc | XrcSend | XrcRecv) => of(PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (QpState::RESET, QpState::INIT, Ud) => of(PKEY_INDEX | PORT | QKEY, 0),
        (QpState::INIT, QpState::INIT, Rc | Uc | XrcSend | XrcRecv) => of(0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (QpState::INIT, QpState::INIT, Ud) => of(0, PKEY_INDEX | PORT | QKEY),

        (QpState::INIT, QpState::RTR, Rc | XrcRecv) => of(
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (QpState::INIT, QpState::RTR, Uc | XrcSend) => {
            of(AV | PATH_MTU | DEST_QPN | RQ_PSN, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX)
        }
        (QpState::INIT, QpState::RTR, Ud) => of(0, PKEY_INDEX | QKEY),

        (QpState::RTR, QpState::RTS, Rc) => of(
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (QpState::RTR, QpState::RTS, XrcSend) => of(
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        ),
        (QpState::RTR, QpState::RTS, XrcRecv) => {
            of(TIMEOUT | SQ_PSN, CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE)
        }
        (QpState::RTR, QpState::RTS, Uc) => of(SQ_PSN, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE),
        (QpState::RTR, QpState::RTS, Ud) => of(SQ_PSN, CUR_STATE | QKEY),

        (QpState::RTS | QpState::SQD, QpState::RTS, Rc | XrcRecv) => {
            of(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER)
        }
        (QpState::RTS | QpState::SQD, QpState::RTS, Uc | XrcSend) => {
            of(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE)
        }
        (QpState::RTS | QpState::SQD | QpState::SQE, QpState::RTS, Ud) => of(0, CUR_STATE | QKEY),
        (QpState::SQE, QpState::RTS, Uc) => of(0, CUR_STATE | ACCESS_FLAGS),

        (QpState::RTS, QpState::SQD, _) => of(0, EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD, Rc) => of(
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        (QpState::SQD, QpState::SQD, XrcSend) => of(
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | PATH_MIG_STATE,
        ),
        (QpState::SQD, QpState::SQD, XrcRecv) => of(
            0,
            PORT | AV
                | TIMEOUT
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        (QpState::SQD, QpState::SQD, Uc) => of(0, AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE),
        (QpState::SQD, QpState::SQD, Ud) => of(0, PKEY_INDEX | QKEY),
        _ => None,
    }
}

/// Refuses a transition that does not exist, or a set of attributes that is not its own.
pub(super) fn check(transport: Transport, from: QpState, to: QpState, given: u32) -> Result<(), Error> {
    let refuse = |exists, missing: u32, extra: u32| {
        Err(Error::Transition(Box::new(Transition {
            transport: transport.name(),
            from: from.name().unwrap_or("an unknown state"),
            to: to.name().unwrap_or("an unknown state"),
            exists,
            missing: names(missing),
            extra: names(extra),
        })))
    };
    let Some(Rule { required, optional }) = rule(transport, from, to) else {
        return refuse(false, 0, 0);
    };
    let (missing, extra) = (required & !given, given & !(required | optional | mask::STATE));
    if missing | extra == 0 { Ok(()) } else { refuse(true, missing, extra) }
}

fn names(mask: u32) -> Vec<&'static str> {
    NAMES.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSPORTS: [Transport; 5] =
        [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcSend, Transport::XrcRecv];

    /// The three transitions that bring a queue pair up, and the masks that the kernel accepts for them.
    fn bring_up(transport: Transport) -> [(QpState, QpState, u32); 3] {
        let [init, rtr, rts] = match transport {
            Transport::Rc => [0x39, 0x129181, 0x12e01],
            Transport::Uc => [0x39, 0x101181, 0x10001],
            Transport::Ud => [0x71, 0x1, 0x10001],
            Transport::XrcSend => [0x39, 0x101181, 0x12e01],
            Transport::XrcRecv => [0x39, 0x129181, 0x10201],
        };
        [(QpState::RESET, QpState::INIT, init), (QpState::INIT, QpState::RTR, rtr), (QpState::RTR, QpState::RTS, rts)]
    }

    #[test]
    fn the_kernels_masks_are_accepted() {
        for transport in TRANSPORTS {
            for (from, to, given) in bring_up(transport) {
                check(transport, from, to, given).unwrap();
            }
        }
    }

    /// Bare EINVAL from modify_qp: one attribute less is named, by each of the required ones in turn.
    #[test]
    fn each_missing_attribute_is_named() {
        for transport in TRANSPORTS {
            for (from, to, given) in bring_up(transport) {
                for (bit, name) in NAMES.iter().filter(|(bit, _)| given & bit != 0 && *bit != mask::STATE) {
                    let Err(Error::Transition(t)) = check(transport, from, to, given & !bit) else {
                        panic!("{transport:?} {from} to {to} without {name} was accepted");
                    };
                    assert_eq!((t.missing.as_slice(), t.extra.as_slice()), (&[*name][..], &[][..]));
                }
            }
        }
    }

    #[test]
    fn each_extra_attribute_is_named() {
        for transport in TRANSPORTS {
            for (from, to, given) in bring_up(transport) {
                let Rule { required, optional } = rule(transport, from, to).unwrap();
                for (bit, name) in NAMES.iter().filter(|(bit, _)| (required | optional | mask::STATE) & bit == 0) {
                    let Err(Error::Transition(t)) = check(transport, from, to, given | bit) else {
                        panic!("{transport:?} {from} to {to} with {name} was accepted");
                    };
                    assert_eq!((t.missing.as_slice(), t.extra.as_slice()), (&[][..], &[*name][..]));
                }
            }
        }
    }

    #[test]
    fn a_transition_that_does_not_exist_says_so() {
        let error = check(Transport::Rc, QpState::RESET, QpState::RTS, 1).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp: RC queue pair, RESET to RTS: there is no such transition");
        let error = check(Transport::Rc, QpState::SQE, QpState::RTS, 1).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp: RC queue pair, SQE to RTS: there is no such transition");
    }

    #[test]
    fn the_message_names_everything() {
        let error =
            check(Transport::Rc, QpState::INIT, QpState::RTR, 0x129181 & !mask::RQ_PSN | mask::QKEY).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp: RC queue pair, INIT to RTR: missing rq_psn; not allowed qkey");
    }
}
