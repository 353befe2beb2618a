//! Waiting for sockets, where the kernel lets us and where it does not.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};
use tally_packet::Ready;

#[test]
fn without_sockets_it_waits_for_its_time() {
    let most = Duration::from_millis(20);
    let begin = Instant::now();
    Ready::new().unwrap().look(most);
    assert!(begin.elapsed() >= most);
}

#[test]
fn a_kernel_without_the_call_is_named_at_once() {
    for refusal in [libc::ENOSYS, libc::EPERM] {
        // The filter is this thread's, and ends with it.
        let why = std::thread::spawn(move || {
            refuse(libc::SYS_epoll_pwait2, refusal);
            Ready::new().map(drop).unwrap_err().to_string()
        });
        let why = why.join().unwrap();
        for part in ["epoll_pwait2", "5.11", &format!("os error {refusal}")] {
            assert!(why.contains(part), "{why}");
        }
    }
}

/// Has a system call fail in this thread.
fn refuse(call: libc::c_long, with: libc::c_int) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    // The number of the call is what the kernel's description of it begins with.
    let mut steps = [
        step(LOAD, 0, 0),
        step(IF_EQUAL, 1, call as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | with as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: numbers.
    let ret = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(ret, 0);
    let filter = libc::SECCOMP_MODE_FILTER;
    // SAFETY: a program of as many steps as it says.
    let ret = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program) };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}
