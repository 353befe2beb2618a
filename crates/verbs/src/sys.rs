//! Types and constants of `infiniband/verbs.h` that this crate uses, laid out as in C.
//!
//! Most structures are made by libibverbs and bound only as far as their last field that is read
//! here. `tests/layout.rs` compares all with the installed header.

#![allow(non_camel_case_types, reason = "the names are C's")]

use libc::{c_char, c_int, c_uint, c_void};

/// Values of `enum ibv_qp_state`.
pub const IBV_QPS_INIT: c_uint = 1;
/// Ready to receive.
pub const IBV_QPS_RTR: c_uint = 2;
/// Ready to send.
pub const IBV_QPS_RTS: c_uint = 3;

/// Values of `enum ibv_qp_attr_mask`.
pub const IBV_QP_STATE: c_int = 1;
/// `qp_access_flags`.
pub const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
/// `pkey_index`.
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
/// `port_num`.
pub const IBV_QP_PORT: c_int = 1 << 5;
/// `ah_attr`.
pub const IBV_QP_AV: c_int = 1 << 7;
/// `path_mtu`.
pub const IBV_QP_PATH_MTU: c_int = 1 << 8;
/// `timeout`.
pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
/// `retry_cnt`.
pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
/// `rnr_retry`.
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
/// `rq_psn`.
pub const IBV_QP_RQ_PSN: c_int = 1 << 12;
/// `max_rd_atomic`.
pub const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// `min_rnr_timer`.
pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// `sq_psn`.
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
/// `max_dest_rd_atomic`.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// `dest_qp_num`.
pub const IBV_QP_DEST_QPN: c_int = 1 << 20;

/// Reliable connection, of `enum ibv_qp_type`.
pub const IBV_QPT_RC: c_uint = 2;
/// SEND, of `enum ibv_wr_opcode`.
pub const IBV_WR_SEND: c_uint = 2;
/// The work request has a completion, of `enum ibv_send_flags`.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// The NIC may write, of `enum ibv_access_flags`.
pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
/// RoCEv2, of `enum ibv_gid_type`.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// Success, of `enum ibv_wc_status`.
pub const IBV_WC_SUCCESS: c_uint = 0;
/// Flushed, since the queue pair is in its error state.
pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
/// The retry counter is exhausted.
pub const IBV_WC_RETRY_EXC_ERR: c_uint = 12;

/// `struct ibv_device`
#[repr(C)]
pub struct ibv_device {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`
#[repr(C)]
pub struct ibv_pd {
    _opaque: [u8; 0],
}

/// `struct ibv_context_ops`; other functions are gaps.
#[repr(C)]
pub struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    /// Takes completions.
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    /// Asks for an event at the next completion.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_post_send: [*mut c_void; 12],
    /// Posts sends.
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    /// Posts receives.
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
}

/// `struct ibv_context`
#[repr(C)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// The provider's functions.
    pub ops: ibv_context_ops,
}

/// `struct ibv_comp_channel`
#[repr(C)]
pub struct ibv_comp_channel {
    /// The device.
    pub context: *mut ibv_context,
    /// Readable when an event is there.
    pub fd: c_int,
}

/// `struct ibv_cq`
#[repr(C)]
pub struct ibv_cq {
    /// The device.
    pub context: *mut ibv_context,
}

/// `struct ibv_qp`
#[repr(C)]
pub struct ibv_qp {
    /// The device.
    pub context: *mut ibv_context,
    /// The caller's.
    pub qp_context: *mut c_void,
    /// The protection domain.
    pub pd: *mut ibv_pd,
    /// Completions of sends.
    pub send_cq: *mut ibv_cq,
    /// Completions of receives.
    pub recv_cq: *mut ibv_cq,
    /// The shared receive queue.
    pub srq: *mut c_void,
    /// Of the kernel's.
    pub handle: u32,
    /// Its number.
    pub qp_num: u32,
}

/// `struct ibv_mr`
#[repr(C)]
pub struct ibv_mr {
    /// The device.
    pub context: *mut ibv_context,
    /// The protection domain.
    pub pd: *mut ibv_pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Number of bytes.
    pub length: usize,
    /// Of the kernel's.
    pub handle: u32,
    /// Key for own work requests.
    pub lkey: u32,
}

/// `struct ibv_gid_entry`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    /// The address; 8-byte aligned in C.
    pub gid: ibv_gid,
    /// Its index in the port's table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// Of `enum ibv_gid_type`.
    pub gid_type: u32,
    /// The network interface.
    pub ndev_ifindex: u32,
}

/// `union ibv_gid`
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct ibv_gid {
    /// An IPv6 address.
    pub raw: [u8; 16],
}

/// `struct ibv_port_attr`; fields that are not read are gaps.
#[repr(C)]
pub struct ibv_port_attr {
    /// Of `enum ibv_port_state`.
    pub state: c_uint,
    /// Of `enum ibv_mtu`.
    pub max_mtu: c_uint,
    /// Of `enum ibv_mtu`.
    pub active_mtu: c_uint,
    _rest: [u32; 10],
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_cap {
    /// Sends posted at once.
    pub max_send_wr: u32,
    /// Receives posted at once.
    pub max_recv_wr: u32,
    /// Parts of a send.
    pub max_send_sge: u32,
    /// Parts of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inlined send.
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
pub struct ibv_qp_init_attr {
    /// The caller's.
    pub qp_context: *mut c_void,
    /// Completions of sends.
    pub send_cq: *mut ibv_cq,
    /// Completions of receives.
    pub recv_cq: *mut ibv_cq,
    /// The shared receive queue.
    pub srq: *mut c_void,
    /// Sizes.
    pub cap: ibv_qp_cap,
    /// Of `enum ibv_qp_type`.
    pub qp_type: c_uint,
    /// Whether all sends have a completion.
    pub sq_sig_all: c_int,
}

/// `struct ibv_global_route`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    /// The peer's address.
    pub dgid: ibv_gid,
    /// IPv6's flow label.
    pub flow_label: u32,
    /// Index of the own address.
    pub sgid_index: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// IPv4's type of service.
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    /// Addresses.
    pub grh: ibv_global_route,
    /// `InfiniBand`'s.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// `InfiniBand`'s.
    pub src_path_bits: u8,
    /// Rate limit.
    pub static_rate: u8,
    /// Whether `grh` is used: always, for RoCE.
    pub is_global: u8,
    /// The device's port.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attr {
    /// Of `enum ibv_qp_state`.
    pub qp_state: c_uint,
    /// The state before.
    pub cur_qp_state: c_uint,
    /// Of `enum ibv_mtu`.
    pub path_mtu: c_uint,
    /// Path migration.
    pub path_mig_state: c_uint,
    /// Of datagrams.
    pub qkey: u32,
    /// First PSN of the peer.
    pub rq_psn: u32,
    /// First own PSN.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// What the peer may do.
    pub qp_access_flags: c_uint,
    /// Sizes.
    pub cap: ibv_qp_cap,
    /// The peer's address.
    pub ah_attr: ibv_ah_attr,
    /// An alternative.
    pub alt_ah_attr: ibv_ah_attr,
    /// Partition.
    pub pkey_index: u16,
    /// An alternative.
    pub alt_pkey_index: u16,
    /// Event when drained.
    pub en_sqd_async_notify: u8,
    /// Whether it is draining.
    pub sq_draining: u8,
    /// RDMA READs in flight.
    pub max_rd_atomic: u8,
    /// RDMA READs of the peer in flight.
    pub max_dest_rd_atomic: u8,
    /// What an RNR NAK asks to wait.
    pub min_rnr_timer: u8,
    /// The device's port.
    pub port_num: u8,
    /// 4.096 us times a power of two.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 is without limit.
    pub rnr_retry: u8,
    /// An alternative.
    pub alt_port_num: u8,
    /// An alternative.
    pub alt_timeout: u8,
    /// Rate limit.
    pub rate_limit: u32,
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sge {
    /// First byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Key of the memory.
    pub lkey: u32,
}

/// `struct ibv_send_wr`; what SEND does not use is a gap.
#[repr(C)]
pub struct ibv_send_wr {
    /// The caller's.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut ibv_send_wr,
    /// Parts.
    pub sg_list: *mut ibv_sge,
    /// Number of parts.
    pub num_sge: c_int,
    /// Of `enum ibv_wr_opcode`.
    pub opcode: c_uint,
    /// Of `enum ibv_send_flags`.
    pub send_flags: c_uint,
    /// Immediate data.
    pub imm_data: u32,
    _rest: [u64; 11],
}

impl ibv_send_wr {
    /// A SEND of these parts that has a completion.
    pub fn send(wr_id: u64, parts: &mut [ibv_sge]) -> Self {
        Self {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: parts.as_mut_ptr(),
            num_sge: parts.len() as c_int,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            imm_data: 0,
            _rest: [0; 11],
        }
    }
}

/// `struct ibv_recv_wr`
#[repr(C)]
pub struct ibv_recv_wr {
    /// The caller's.
    pub wr_id: u64,
    /// The next of a list.
    pub next: *mut ibv_recv_wr,
    /// Parts.
    pub sg_list: *mut ibv_sge,
    /// Number of parts.
    pub num_sge: c_int,
}

/// `struct ibv_wc`; fields that are not read are gaps.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc {
    /// The caller's.
    pub wr_id: u64,
    /// Of `enum ibv_wc_status`.
    pub status: c_uint,
    /// Of `enum ibv_wc_opcode`.
    pub opcode: c_uint,
    /// Of the vendor's.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    _rest: [u32; 6],
}

/// Functions of libibverbs, by their names.
pub mod functions {
    use super::*;

    /// `ibv_get_device_list`
    pub type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    /// `ibv_free_device_list`
    pub type FreeDeviceList = unsafe extern "C" fn(*mut *mut ibv_device);
    /// `ibv_get_device_name`
    pub type GetDeviceName = unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    /// `ibv_open_device`
    pub type OpenDevice = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    /// `ibv_close_device`
    pub type CloseDevice = unsafe extern "C" fn(*mut ibv_context) -> c_int;
    /// `ibv_query_port`
    pub type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    /// `_ibv_query_gid_table`
    pub type QueryGidTable = unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_gid_entry,
        usize,
        u32,
        usize,
    ) -> libc::ssize_t;
    /// `ibv_alloc_pd`
    pub type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    /// `ibv_dealloc_pd`
    pub type DeallocPd = unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    /// `ibv_reg_mr`
    pub type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    /// `ibv_dereg_mr`
    pub type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    /// `ibv_create_comp_channel`
    pub type CreateCompChannel = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
    /// `ibv_destroy_comp_channel`
    pub type DestroyCompChannel = unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
    /// `ibv_create_cq`
    pub type CreateCq = unsafe extern "C" fn(
        *mut ibv_context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq;
    /// `ibv_destroy_cq`
    pub type DestroyCq = unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    /// `ibv_get_cq_event`
    pub type GetCqEvent =
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    /// `ibv_ack_cq_events`
    pub type AckCqEvents = unsafe extern "C" fn(*mut ibv_cq, c_uint);
    /// `ibv_create_qp`
    pub type CreateQp = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// `ibv_modify_qp`
    pub type ModifyQp = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    /// `ibv_destroy_qp`
    pub type DestroyQp = unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    /// `ibv_wc_status_str`
    pub type WcStatusStr = unsafe extern "C" fn(c_uint) -> *const c_char;
}
