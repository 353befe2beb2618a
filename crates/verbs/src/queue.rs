//! Queue pairs of reliable connections, and the completions of what is posted on them.

use crate::device::{Device, Registration, gid};
use crate::sys::{
    self, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::{VerbsError, last_error};
use libc::c_int;
use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use tally_wire::roce::{Psn, QueuePair as QueuePairNumber};

/// Retransmission timeout: 4.096 us times two to this power, 0.54 s.
const TIMEOUT: u8 = 17;
/// Retries after timeouts. With 7, the maximum, Linux's rxe retries without limit.
const RETRIES: u8 = 6;
/// Retries after RNR NAKs, without limit.
const RNR_RETRIES: u8 = 7;
/// What an RNR NAK asks to wait: 0.64 ms.
const RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;
/// Parts of a work request at most.
pub(crate) const PARTS_MAX: usize = 3;
/// Completions taken at once.
const BATCH: usize = 16;

/// Where completions come out, with a file descriptor to wait for them.
pub struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread, at the same time.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; its fields are not changed.
unsafe impl Sync for CompletionQueue {}

/// Completion of a work request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The number that it was posted with.
    pub id: u64,
    /// Bytes of a received message; or why it failed.
    pub result: Result<usize, Failed>,
}

/// Reason for which a work request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Status of `enum ibv_wc_status`.
    pub status: u32,
    /// Its description.
    pub text: String,
}

impl Failed {
    /// Whether it is a consequence of an earlier failure.
    #[must_use]
    pub const fn is_flushed(&self) -> bool {
        self.status == sys::IBV_WC_WR_FLUSH_ERR
    }
}

impl CompletionQueue {
    /// A queue with space for this many completions.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(device: &Arc<Device>, completions: usize) -> Result<Arc<Self>, VerbsError> {
        let library = device.library;
        // SAFETY: the device is open.
        let channel = unsafe { (library.create_comp_channel)(device.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        let entries = c_int::try_from(completions).expect("a possible number");
        // SAFETY: the device is open, the channel is its own.
        let cq = unsafe {
            (library.create_cq)(
                device.context.as_ptr(),
                entries,
                null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = last_error("ibv_create_cq");
            // SAFETY: made above, and no queue has it.
            unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self {
            cq,
            channel,
            device: device.clone(),
        };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&queue.descriptor());
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(last_error("fcntl"));
        }
        Ok(Arc::new(queue))
    }

    /// Readable after [`arm`](Self::arm), when a completion has come.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has it open until it is destroyed, in `drop`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes completions.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn poll(&self) -> Result<Vec<Completion>, VerbsError> {
        // SAFETY: zeros are a value of it.
        let mut entries: [ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is alive, the provider has the function, and `entries` has space.
        let count = unsafe {
            let ops = &self.cq.as_ref().context.as_ref().expect("a device").ops;
            let poll = ops.poll_cq.expect("the provider's poll_cq");
            poll(self.cq.as_ptr(), BATCH as c_int, entries.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| last_error("ibv_poll_cq"))?;
        let completion = |entry: &ibv_wc| Completion {
            id: entry.wr_id,
            result: if entry.status == sys::IBV_WC_SUCCESS {
                Ok(entry.byte_len as usize)
            } else {
                Err(self.failed(entry.status))
            },
        };
        Ok(entries[..count].iter().map(completion).collect())
    }

    fn failed(&self, status: u32) -> Failed {
        // SAFETY: it gives a C string for each number.
        let text = unsafe { CStr::from_ptr((self.device.library.wc_status_str)(status)) };
        Failed {
            status,
            text: text.to_string_lossy().into_owned(),
        }
    }

    /// Takes the events that there are, and asks for one at the next completion. Then
    /// [`poll`](Self::poll) once more before waiting.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let library = self.device.library;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive, does not block, and has no other queue.
        while unsafe {
            (library.get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context)
        } == 0
        {
            // SAFETY: the event is of this queue.
            unsafe { (library.ack_cq_events)(cq, 1) };
        }
        // SAFETY: the queue is alive, and the provider has the function.
        let failed = unsafe {
            let ops = &self.cq.as_ref().context.as_ref().expect("a device").ops;
            let notify = ops.req_notify_cq.expect("the provider's req_notify_cq");
            notify(self.cq.as_ptr(), 0)
        };
        check("ibv_req_notify_cq", failed)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold it, and so are gone; all events were acknowledged.
        unsafe {
            (self.device.library.destroy_cq)(self.cq.as_ptr());
            (self.device.library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its queue pair.
    pub qp: QueuePairNumber,
    /// First PSN of both sides.
    pub psn: Psn,
    /// Longest payload of a packet: 256 to 4096.
    pub mtu: usize,
    /// DSCP of the packets to it.
    pub dscp: u8,
}

/// A queue pair of a reliable connection.
pub struct QueuePair {
    qp: NonNull<ibv_qp>,
    _completions: Arc<CompletionQueue>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair without a peer, for this many sends and receives at once.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(
        device: &Arc<Device>,
        completions: &Arc<CompletionQueue>,
        (sends, receives): (usize, usize),
    ) -> Result<Self, VerbsError> {
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: completions.cq.as_ptr(),
            recv_cq: completions.cq.as_ptr(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sends.max(1) as u32,
                max_recv_wr: receives.max(1) as u32,
                max_send_sge: PARTS_MAX as u32,
                max_recv_sge: PARTS_MAX as u32,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are of the same device, and alive.
        let qp = unsafe { (device.library.create_qp)(device.pd.as_ptr(), &raw mut init) };
        let pair = Self {
            qp: NonNull::new(qp).ok_or_else(|| last_error("ibv_create_qp"))?,
            _completions: completions.clone(),
            device: device.clone(),
        };
        let mut attributes = pair.attributes(sys::IBV_QPS_INIT);
        attributes.port_num = device.port;
        pair.modify(
            &mut attributes,
            sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS,
        )?;
        Ok(pair)
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        // SAFETY: it is alive.
        QueuePairNumber(unsafe { self.qp.as_ref() }.qp_num)
    }

    /// Connects it, ready to receive and to send.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn connect(&self, peer: &Peer) -> Result<(), VerbsError> {
        let mut attributes = self.attributes(sys::IBV_QPS_RTR);
        attributes.path_mtu = (peer.mtu / 128).trailing_zeros();
        attributes.dest_qp_num = peer.qp.0;
        attributes.rq_psn = peer.psn.get();
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = RNR_TIMER;
        attributes.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: gid(peer.address),
                flow_label: 0,
                sgid_index: self.device.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: peer.dscp << 2,
            },
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: self.device.port,
        };
        self.modify(
            &mut attributes,
            sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut attributes = self.attributes(sys::IBV_QPS_RTS);
        attributes.timeout = TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RNR_RETRIES;
        attributes.sq_psn = peer.psn.get();
        attributes.max_rd_atomic = 1;
        self.modify(
            &mut attributes,
            sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn attributes(&self, state: u32) -> ibv_qp_attr {
        // SAFETY: zeros are a value of it.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        attributes
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> Result<(), VerbsError> {
        let mask = mask | sys::IBV_QP_STATE;
        // SAFETY: it is alive, and `attributes` has what the mask says.
        let failed = unsafe { (self.device.library.modify_qp)(self.qp.as_ptr(), attributes, mask) };
        check("ibv_modify_qp", failed)
    }

    /// Posts a SEND of a message of these parts of memory: start and length in bytes.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// Until its completion was polled or the queue pair is dropped, nothing writes the parts but
    /// receives of this device, and their memory is not dropped.
    pub(crate) unsafe fn post_send(&self, id: u64, parts: &[Part<'_>]) -> Result<(), VerbsError> {
        let (mut list, count) = self.list(parts);
        let mut request = ibv_send_wr::send(id, &mut list[..count]);
        let mut bad = null_mut();
        // SAFETY: it is alive, the provider has the function, and the list lives as long as the
        // call. Its memory is valid by the caller's promise.
        let failed = unsafe {
            let ops = &self.qp.as_ref().context.as_ref().expect("a device").ops;
            let post = ops.post_send.expect("the provider's post_send");
            post(self.qp.as_ptr(), &raw mut request, &raw mut bad)
        };
        check("ibv_post_send", failed)
    }

    /// Posts a receive into these parts of memory: start and length in bytes.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// Until its completion was polled or the queue pair is dropped, nothing reads or writes the
    /// parts but sends of this device, and their memory is not dropped.
    pub(crate) unsafe fn post_receive(
        &self,
        id: u64,
        parts: &[Part<'_>],
    ) -> Result<(), VerbsError> {
        let (mut list, count) = self.list(parts);
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: count as c_int,
        };
        let mut bad = null_mut();
        // SAFETY: as in `post_send`.
        let failed = unsafe {
            let ops = &self.qp.as_ref().context.as_ref().expect("a device").ops;
            let post = ops.post_recv.expect("the provider's post_recv");
            post(self.qp.as_ptr(), &raw mut request, &raw mut bad)
        };
        check("ibv_post_recv", failed)
    }

    /// Parts that have bytes, for a work request.
    fn list(&self, parts: &[Part<'_>]) -> ([ibv_sge; PARTS_MAX], usize) {
        let mut list = [ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        }; PARTS_MAX];
        let mut count = 0;
        for &(memory, start, bytes) in parts.iter().filter(|part| part.2 > 0) {
            assert!(memory.is_of(&self.device), "memory of another device");
            list[count] = memory.part(start, bytes);
            count += 1;
        }
        (list, count)
    }
}

/// Registered memory, and start and length in it.
pub(crate) type Part<'a> = (&'a Registration, usize, usize);

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made in `new`. The device neither reads nor writes for it afterwards.
        unsafe { (self.device.library.destroy_qp)(self.qp.as_ptr()) };
    }
}

/// Functions that return an error number.
fn check(call: &'static str, error: c_int) -> Result<(), VerbsError> {
    if error == 0 {
        return Ok(());
    }
    let source = std::io::Error::from_raw_os_error(error.abs());
    Err(VerbsError::Device { call, source })
}
