//! Names and shapes of the commands that this library sends, for people who read them.

use crate::mlx5::abi::uar;
use crate::uverbs::abi::ioctl::{Method, attr, method, object};
use crate::uverbs::abi::write::command;
use crate::uverbs::abi::{verbs, write};
use crate::uverbs::types::Guid;
use std::borrow::Cow;
use std::fmt::{self, Write as _};
use zerocopy::FromBytes;

/// Which way an attribute goes, and so whether its data is a value or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A value if it has at most 8 bytes, else the address of one.
    In,
    /// Always the address of room for one.
    Out,
    /// A value.
    Const,
    /// A handle.
    Object,
    /// Room for a handle.
    NewObject,
    /// A file descriptor.
    Fd,
    /// Room for a file descriptor.
    NewFd,
}

pub struct AttrSpec {
    pub id: u16,
    pub name: &'static str,
    pub shape: Shape,
}

pub struct MethodSpec {
    pub method: Method,
    pub name: &'static str,
    attrs: &'static [AttrSpec],
}

impl MethodSpec {
    /// What is known of attribute `id`; the driver's two are the same everywhere.
    pub fn attr(&self, id: u16) -> Option<&'static AttrSpec> {
        self.attrs.iter().chain(UHW).find(|spec| spec.id == id)
    }
}

macro_rules! attrs {
    ($($module:ident::$name:ident $shape:ident),* $(,)?) => {
        &[$(AttrSpec { id: attr::$module::$name, name: stringify!($name), shape: Shape::$shape }),*]
    };
}

static UHW: &[AttrSpec] = &[
    AttrSpec { id: attr::UHW_IN, name: "UHW_IN", shape: Shape::In },
    AttrSpec { id: attr::UHW_OUT, name: "UHW_OUT", shape: Shape::Out },
];

/// The method of an ioctl, if this library knows it.
pub fn method_spec(method: Method) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|spec| spec.method == method)
}

static METHODS: &[MethodSpec] = &[
    MethodSpec {
        method: method::INVOKE_WRITE,
        name: "INVOKE_WRITE",
        attrs: attrs![invoke_write::CORE_IN In, invoke_write::CORE_OUT Out, invoke_write::WRITE_CMD Const],
    },
    MethodSpec {
        method: method::INFO_HANDLES,
        name: "DEVICE.INFO_HANDLES",
        attrs: attrs![
            info_handles::OBJECT_ID Const,
            info_handles::TOTAL_HANDLES Out,
            info_handles::HANDLES_LIST Out,
        ],
    },
    MethodSpec {
        method: method::QUERY_PORT,
        name: "DEVICE.QUERY_PORT",
        attrs: attrs![query_port::PORT_NUM Const, query_port::RESP Out],
    },
    MethodSpec {
        method: method::GET_CONTEXT,
        name: "DEVICE.GET_CONTEXT",
        attrs: attrs![get_context::NUM_COMP_VECTORS Out, get_context::CORE_SUPPORT Out],
    },
    MethodSpec {
        method: method::QUERY_GID_TABLE,
        name: "DEVICE.QUERY_GID_TABLE",
        attrs: attrs![
            query_gid_table::ENTRY_SIZE Const,
            query_gid_table::FLAGS In,
            query_gid_table::RESP_ENTRIES Out,
            query_gid_table::RESP_NUM_ENTRIES Out,
        ],
    },
    MethodSpec {
        method: method::QUERY_GID_ENTRY,
        name: "DEVICE.QUERY_GID_ENTRY",
        attrs: attrs![
            query_gid_entry::PORT Const,
            query_gid_entry::GID_INDEX Const,
            query_gid_entry::FLAGS In,
            query_gid_entry::RESP_ENTRY Out,
        ],
    },
    MethodSpec { method: method::PD_DESTROY, name: "PD.DESTROY", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec { method: method::AH_DESTROY, name: "AH.DESTROY", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec { method: method::MR_DESTROY, name: "MR.DESTROY", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec {
        method: method::ADVISE_MR,
        name: "MR.ADVISE_MR",
        attrs: attrs![advise_mr::PD_HANDLE Object, advise_mr::ADVICE Const, advise_mr::FLAGS In, advise_mr::SGE_LIST In],
    },
    MethodSpec {
        method: method::REG_DMABUF_MR,
        name: "MR.REG_DMABUF_MR",
        attrs: attrs![
            reg_dmabuf_mr::HANDLE NewObject,
            reg_dmabuf_mr::PD_HANDLE Object,
            reg_dmabuf_mr::OFFSET In,
            reg_dmabuf_mr::LENGTH In,
            reg_dmabuf_mr::IOVA In,
            reg_dmabuf_mr::FD In,
            reg_dmabuf_mr::ACCESS_FLAGS In,
            reg_dmabuf_mr::RESP_LKEY Out,
            reg_dmabuf_mr::RESP_RKEY Out,
        ],
    },
    MethodSpec { method: method::MW_DESTROY, name: "MW.DESTROY", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec { method: method::XRCD_DESTROY, name: "XRCD.DESTROY", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec {
        method: method::DM_ALLOC,
        name: "DM.ALLOC",
        attrs: attrs![alloc_dm::HANDLE NewObject, alloc_dm::LENGTH In, alloc_dm::ALIGNMENT In],
    },
    MethodSpec { method: method::DM_FREE, name: "DM.FREE", attrs: attrs![destroy::HANDLE Object] },
    MethodSpec {
        method: method::CQ_CREATE,
        name: "CQ.CREATE",
        attrs: attrs![
            create_cq::HANDLE NewObject,
            create_cq::CQE In,
            create_cq::USER_HANDLE In,
            create_cq::COMP_CHANNEL Fd,
            create_cq::COMP_VECTOR In,
            create_cq::FLAGS In,
            create_cq::RESP_CQE Out,
        ],
    },
    MethodSpec {
        method: method::CQ_DESTROY,
        name: "CQ.DESTROY",
        attrs: attrs![destroy::HANDLE Object, destroy::RESP Out],
    },
    MethodSpec {
        method: method::QP_CREATE,
        name: "QP.CREATE",
        attrs: attrs![
            create_qp::HANDLE NewObject,
            create_qp::XRCD_HANDLE Object,
            create_qp::PD_HANDLE Object,
            create_qp::SRQ_HANDLE Object,
            create_qp::SEND_CQ_HANDLE Object,
            create_qp::RECV_CQ_HANDLE Object,
            create_qp::USER_HANDLE In,
            create_qp::CAP In,
            create_qp::TYPE Const,
            create_qp::FLAGS In,
            create_qp::RESP_CAP Out,
            create_qp::RESP_QP_NUM Out,
        ],
    },
    MethodSpec {
        method: method::QP_DESTROY,
        name: "QP.DESTROY",
        attrs: attrs![destroy::HANDLE Object, destroy::RESP Out],
    },
    MethodSpec {
        method: method::SRQ_CREATE,
        name: "SRQ.CREATE",
        attrs: attrs![
            create_srq::HANDLE NewObject,
            create_srq::PD_HANDLE Object,
            create_srq::XRCD_HANDLE Object,
            create_srq::CQ_HANDLE Object,
            create_srq::USER_HANDLE In,
            create_srq::MAX_WR In,
            create_srq::MAX_SGE In,
            create_srq::LIMIT In,
            create_srq::TYPE Const,
            create_srq::RESP_MAX_WR Out,
            create_srq::RESP_MAX_SGE Out,
            create_srq::RESP_SRQ_NUM Out,
        ],
    },
    MethodSpec {
        method: method::SRQ_DESTROY,
        name: "SRQ.DESTROY",
        attrs: attrs![destroy::HANDLE Object, destroy::RESP Out],
    },
    MethodSpec {
        method: method::ASYNC_EVENT_ALLOC,
        name: "ASYNC_EVENT.ALLOC",
        attrs: attrs![async_event_alloc::FD_HANDLE NewFd],
    },
    // The mlx5 driver's own.
    MethodSpec {
        method: uar::ALLOC,
        name: "MLX5_UAR.ALLOC",
        attrs: &[
            AttrSpec { id: uar::attr::HANDLE, name: "HANDLE", shape: Shape::NewObject },
            AttrSpec { id: uar::attr::TYPE, name: "TYPE", shape: Shape::Const },
            AttrSpec { id: uar::attr::MMAP_OFFSET, name: "MMAP_OFFSET", shape: Shape::Out },
            AttrSpec { id: uar::attr::MMAP_LENGTH, name: "MMAP_LENGTH", shape: Shape::Out },
            AttrSpec { id: uar::attr::PAGE_ID, name: "PAGE_ID", shape: Shape::Out },
        ],
    },
    MethodSpec {
        method: uar::DESTROY,
        name: "MLX5_UAR.DESTROY",
        attrs: &[AttrSpec { id: uar::attr::HANDLE, name: "HANDLE", shape: Shape::Object }],
    },
];

/// The name of an object type, for methods that are not in the table.
pub fn object_name(id: u16) -> Option<&'static str> {
    Some(match id {
        object::DEVICE => "DEVICE",
        object::PD => "PD",
        object::COMP_CHANNEL => "COMP_CHANNEL",
        object::CQ => "CQ",
        object::QP => "QP",
        object::SRQ => "SRQ",
        object::AH => "AH",
        object::MR => "MR",
        object::MW => "MW",
        object::XRCD => "XRCD",
        object::DM => "DM",
        object::ASYNC_EVENT => "ASYNC_EVENT",
        _ => return None,
    })
}

/// A command of the write() interface.
pub struct WriteSpec {
    pub name: &'static str,
    /// Bytes of the core's request, the driver's follows.
    pub request_bytes: usize,
    /// Bytes of the core's response.
    pub response_bytes: usize,
    pub show_request: Show,
    pub show_response: Show,
}

pub type Show = fn(&[u8], &mut String) -> fmt::Result;

macro_rules! write_commands {
    ($($number:ident $request:ty => $response:ty;)*) => {
        /// The command with this number, if this library knows it.
        pub fn write_spec(number: u32) -> Option<WriteSpec> {
            Some(match number {
                $(command::$number => WriteSpec {
                    name: stringify!($number),
                    request_bytes: size_of::<$request>(),
                    response_bytes: size_of::<$response>(),
                    show_request: show::<$request>,
                    show_response: show::<$response>,
                },)*
                _ => return None,
            })
        }
    };
}

write_commands! {
    GET_CONTEXT write::GetContext => write::GetContextResp;
    QUERY_DEVICE write::QueryDevice => write::QueryDeviceResp;
    EX_QUERY_DEVICE write::ExQueryDevice => write::ExQueryDeviceResp;
    QUERY_PORT write::QueryPort => verbs::QueryPortResp;
    ALLOC_PD write::AllocPd => write::AllocPdResp;
    DEALLOC_PD write::DeallocPd => ();
    REG_MR write::RegMr => write::RegMrResp;
    DEREG_MR write::DeregMr => ();
    REREG_MR write::ReregMr => write::ReregMrResp;
    ALLOC_MW write::AllocMw => write::AllocMwResp;
    DEALLOC_MW write::DeallocMw => ();
    CREATE_COMP_CHANNEL write::CreateCompChannel => write::CreateCompChannelResp;
    CREATE_CQ write::CreateCq => write::CreateCqResp;
    RESIZE_CQ write::ResizeCq => write::ResizeCqResp;
    DESTROY_CQ write::DestroyCq => verbs::DestroyCqResp;
    REQ_NOTIFY_CQ write::ReqNotifyCq => ();
    EX_MODIFY_CQ write::ExModifyCq => ();
    CREATE_QP write::CreateQp => write::CreateQpResp;
    QUERY_QP write::QueryQp => write::QueryQpResp;
    MODIFY_QP write::ModifyQp => ();
    DESTROY_QP write::DestroyQp => verbs::DestroyQpResp;
    POST_SEND write::PostSend => write::PostSendResp;
    CREATE_SRQ write::CreateSrq => write::CreateSrqResp;
    MODIFY_SRQ write::ModifySrq => ();
    QUERY_SRQ write::QuerySrq => write::QuerySrqResp;
    DESTROY_SRQ write::DestroySrq => verbs::DestroySrqResp;
    OPEN_XRCD write::OpenXrcd => write::OpenXrcdResp;
    CLOSE_XRCD write::CloseXrcd => ();
    CREATE_XSRQ write::CreateXsrq => write::CreateSrqResp;
    OPEN_QP write::OpenQp => write::CreateQpResp;
    CREATE_AH write::CreateAh => write::CreateAhResp;
    DESTROY_AH write::DestroyAh => ();
    ATTACH_MCAST write::AttachMcast => ();
    DETACH_MCAST write::DetachMcast => ();
}

/// How an attribute's value is shown.
pub fn show_attr(method: Method, id: u16) -> Show {
    match (method, id) {
        (method::QP_CREATE, attr::create_qp::CAP | attr::create_qp::RESP_CAP) => show::<verbs::QpCap>,
        (method::QUERY_PORT, attr::query_port::RESP) => show::<verbs::QueryPortRespEx>,
        (method::QUERY_GID_ENTRY, attr::query_gid_entry::RESP_ENTRY) => show::<verbs::GidEntry>,
        (method::CQ_DESTROY, attr::destroy::RESP) => show::<verbs::DestroyCqResp>,
        (method::QP_DESTROY, attr::destroy::RESP) => show::<verbs::DestroyQpResp>,
        (method::SRQ_DESTROY, attr::destroy::RESP) => show::<verbs::DestroySrqResp>,
        _ => show_plain,
    }
}

/// Writes a structure's handles and what else is not zero, as `name=value`; hex where the bytes are too few for one.
fn show<T: FromBytes + fmt::Debug>(bytes: &[u8], out: &mut String) -> fmt::Result {
    match T::read_from_prefix(bytes) {
        Ok((value, _)) => {
            let debug = format!("{value:?}");
            out.push_str(&Terse::of(&debug).text);
            Ok(())
        }
        Err(_) => show_plain(bytes, out),
    }
}

/// Writes a number of 4 or 8 bytes as such, anything else as hex, shortened.
pub fn show_plain(bytes: &[u8], out: &mut String) -> fmt::Result {
    const SHOWN: usize = 64;
    match *bytes {
        [a, b, c, d] => return show_number(u32::from_ne_bytes([a, b, c, d]).into(), out),
        [a, b, c, d, e, f, g, h] => return show_number(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), out),
        _ => {}
    }
    for byte in bytes.iter().take(SHOWN) {
        write!(out, "{byte:02x}")?;
    }
    if bytes.len() > SHOWN {
        write!(out, "... ({} bytes)", bytes.len())?;
    }
    Ok(())
}

/// Writes numbers of more than 16 bits in hexadecimal: those are addresses, keys and masks.
fn show_number(n: u64, out: &mut String) -> fmt::Result {
    if n > 0xffff { write!(out, "{n:#x}") } else { write!(out, "{n}") }
}

/// The derived `Debug` form of a structure of numbers, made short: `Name { a: 0, b: 5, c: C { d: 1 } }` as `b=5 c={d=1}`.
struct Terse<'a> {
    text: String,
    rest: &'a str,
}

impl<'a> Terse<'a> {
    fn of(debug: &'a str) -> Self {
        if let Some(list) = debug.strip_prefix('[') {
            let (list, rest) = list.split_once(']').unwrap_or((list, ""));
            let bytes: Vec<u8> = list.split(", ").filter_map(|n| n.parse().ok()).collect();
            let zero = bytes.iter().all(|b| *b == 0);
            let text = if zero { String::new() } else { bytes.iter().map(|b| format!("{b:02x}")).collect() };
            return Self { text, rest };
        }
        let end = debug.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(debug.len());
        let (word, rest) = debug.split_at(end);
        match rest.strip_prefix(" { ") {
            Some(fields) => Self::fields(fields),
            None => Self { text: number(word), rest },
        }
    }

    fn fields(mut rest: &'a str) -> Self {
        let mut shown = vec![];
        while let Some((name, value)) = rest.split_once(": ") {
            let mut value = Self::of(value);
            match value.text.parse::<u64>() {
                _ if name.ends_with("guid") => value.text = guid(&value.text),
                Ok(bits) if name.ends_with("mask") || name.ends_with("flags") => value.text = format!("{bits:#x}"),
                // Zero is a handle like any other.
                Err(_) if value.text.is_empty() && name.ends_with("handle") => value.text.push('0'),
                _ => {}
            }
            if !value.text.is_empty() {
                shown.push(format!("{name}={}", braced(&value.text)));
            }
            match value.rest.strip_prefix(", ") {
                Some(more) => rest = more,
                None => {
                    rest = value.rest.strip_prefix(" }").unwrap_or(value.rest);
                    break;
                }
            }
        }
        Self { text: shown.join(" "), rest }
    }
}

/// A GUID, which the kernel gives in the order of the network; nothing for zero.
fn guid(text: &str) -> String {
    let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    number.map_or_else(|_| text.to_owned(), |number| Guid(u64::from_be(number)).to_string())
}

/// Several fields in braces.
pub fn braced(text: &str) -> Cow<'_, str> {
    if text.contains('=') { format!("{{{text}}}").into() } else { text.into() }
}

/// Nothing for zero.
fn number(word: &str) -> String {
    let mut text = String::new();
    match word.parse::<u64>() {
        Ok(0) => {}
        Ok(n) => show_number(n, &mut text).expect("a String takes everything"),
        Err(_) => text.push_str(word),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_shown_without_their_zeros() {
        let request = write::ModifyQp {
            dest: write::QpDest { dgid: [0xfe; 16], port_num: 1, ..Default::default() },
            attr_mask: 0x12_9181,
            retry_cnt: 7,
            ..Default::default()
        };
        let mut text = String::new();
        show::<write::ModifyQp>(zerocopy::IntoBytes::as_bytes(&request), &mut text).unwrap();
        let gid = "fe".repeat(16);
        assert_eq!(text, format!("dest={{dgid={gid} port_num=1}} qp_handle=0 attr_mask=0x129181 retry_cnt=7"));
    }

    #[test]
    fn guids_are_shown_as_people_write_them() {
        let number = 0x0200_00ff_fe09_0901_u64.to_be();
        let text = Terse::of(&format!("Resp {{ fw_ver: 0, node_guid: {number}, sys_image_guid: 0 }}")).text;
        assert_eq!(text, "node_guid=0200:00ff:fe09:0901");
    }

    #[test]
    fn too_few_bytes_are_shown_as_they_are() {
        let mut text = String::new();
        show::<write::ModifyQp>(&[1, 2, 3], &mut text).unwrap();
        assert_eq!(text, "010203");
    }
}
