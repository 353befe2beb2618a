//! The fields of `rte_mbuf` that Rust reads and writes.
//!
//! Each method gives a pointer into the descriptor, at the offset that libclang finds in DPDK's
//! headers. The offset is a constant, so an access is one load or store. The structure is opaque,
//! because releases move its fields and bindgen renames those in anonymous unions.

use crate::bindings::{self, rte_mbuf};

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $offset:ident;)*) => {
        impl rte_mbuf {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                /// `mbuf` points to a descriptor.
                #[inline(always)]
                #[must_use]
                pub unsafe fn $name(mbuf: *mut Self) -> *mut $type {
                    // SAFETY: the offset is that of a field of this type, by `offsetof` and an
                    // assertion in `shim.c`, so it is within the descriptor.
                    unsafe { mbuf.byte_add(bindings::$offset as usize).cast() }
                }
            )*
        }
    };
}

fields! {
    /// Start of the segment's buffer.
    buf_addr: *mut u8 = TALLY_MBUF_BUF_ADDR;
    /// Length of the segment's buffer in bytes.
    buf_len: u16 = TALLY_MBUF_BUF_LEN;
    /// Bytes of the frame in this segment.
    data_len: u16 = TALLY_MBUF_DATA_LEN;
    /// Where the segment's data starts in its buffer, in bytes.
    data_off: u16 = TALLY_MBUF_DATA_OFF;
    /// Number of segments; of a frame's first segment only.
    nb_segs: u16 = TALLY_MBUF_NB_SEGS;
    /// The next segment, or null.
    next: *mut rte_mbuf = TALLY_MBUF_NEXT;
    /// Offload flags, such as `RTE_MBUF_F_RX_IP_CKSUM_BAD`.
    ol_flags: u64 = TALLY_MBUF_OL_FLAGS;
    /// Bytes of the frame in all segments; of a frame's first segment only.
    pkt_len: u32 = TALLY_MBUF_PKT_LEN;
    /// The port it was received on.
    port: u16 = TALLY_MBUF_PORT;
    /// References to the segment; threads that share it access it atomically.
    refcnt: u16 = TALLY_MBUF_REFCNT;
    /// Lengths of headers and of segments, as bit fields.
    tx_offload: u64 = TALLY_MBUF_TX_OFFLOAD;
}
