//! VLAN tags: the kernel takes them out of frames before a packet socket sees them.
//!
//! It says beside the frame what was taken, if the socket asks (`PACKET_AUXDATA`), and we put that
//! back. Of two tags it takes the outer one.

use std::mem::{offset_of, zeroed};
use std::ptr;
use tally_dpdk::Mbuf;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 4;
/// Bytes of the two addresses before it.
const ADDRESSES_BYTES: usize = 12;
/// What it begins with if the kernel does not say.
const TPID: u16 = 0x8100;

/// What the kernel says beside a frame: one control message.
#[repr(C, align(8))]
pub(crate) struct Aside {
    header: libc::cmsghdr,
    said: libc::tpacket_auxdata,
}

// SAFETY: arithmetic.
const _: () = assert!(offset_of!(Aside, said) == unsafe { libc::CMSG_LEN(0) } as usize);

/// A tag that is missing in its frame.
#[derive(Clone, Copy)]
pub(crate) struct Tag {
    tpid: u16,
    tci: u16,
}

impl Aside {
    pub(crate) fn new() -> Self {
        // SAFETY: all fields are numbers.
        unsafe { zeroed() }
    }

    /// Has the next frame of a message described here. Each system call needs it anew.
    pub(crate) fn attach(&mut self, message: &mut libc::mmsghdr) {
        // Nothing that was said of the last one is left if nothing is said.
        self.said.tp_status = 0;
        message.msg_hdr.msg_control = ptr::from_mut(self).cast();
        message.msg_hdr.msg_controllen = size_of::<Self>();
    }

    /// The tag that was taken out.
    #[inline]
    pub(crate) fn tag(&self) -> Option<Tag> {
        let said = &self.said;
        if said.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let has_tpid = said.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        Some(Tag {
            tpid: if has_tpid { said.tp_vlan_tpid } else { TPID },
            tci: said.tp_vlan_tci,
        })
    }
}

impl Tag {
    /// Puts it back; `false` if there is no place for it.
    #[cold]
    pub(crate) fn put_back(self, frame: &mut Mbuf) -> bool {
        if frame.len() < ADDRESSES_BYTES || frame.prepend(TAG_BYTES).is_none() {
            return false;
        }
        let Some(bytes) = frame.data_mut() else {
            return false;
        };
        bytes.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
        let tag = &mut bytes[ADDRESSES_BYTES..][..TAG_BYTES];
        tag[..2].copy_from_slice(&self.tpid.to_be_bytes());
        tag[2..].copy_from_slice(&self.tci.to_be_bytes());
        true
    }
}
