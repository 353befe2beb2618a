//! Structures and constants of `tally_verbs::sys` against the header that is installed.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::Command;
use tally_verbs::sys;

/// Each with its expression in C.
macro_rules! values {
    (sizes: $($sized:ident)*; fields: $($structure:ident.$field:ident)*; constants: $($constant:ident)*;) => {
        vec![
            $((format!("sizeof(struct {})", stringify!($sized)), size_of::<sys::$sized>() as u64),)*
            $((
                format!("offsetof(struct {}, {})", stringify!($structure), stringify!($field)),
                offset_of!(sys::$structure, $field) as u64,
            ),)*
            $((stringify!($constant).to_owned(), u64::try_from(sys::$constant).unwrap()),)*
        ]
    };
}

fn values() -> Vec<(String, u64)> {
    values! {
        sizes: ibv_port_attr ibv_gid_entry ibv_qp_cap ibv_qp_init_attr ibv_global_route ibv_ah_attr
            ibv_qp_attr ibv_sge ibv_send_wr ibv_recv_wr ibv_wc;
        fields: ibv_context_ops.poll_cq ibv_context_ops.req_notify_cq ibv_context_ops.post_send
            ibv_context_ops.post_recv ibv_context.ops ibv_comp_channel.fd ibv_cq.context
            ibv_qp.context ibv_qp.qp_num ibv_mr.lkey ibv_port_attr.active_mtu ibv_gid_entry.gid
            ibv_gid_entry.gid_index ibv_gid_entry.port_num ibv_gid_entry.gid_type
            ibv_qp_init_attr.send_cq ibv_qp_init_attr.recv_cq ibv_qp_init_attr.srq
            ibv_qp_init_attr.cap ibv_qp_init_attr.qp_type ibv_qp_init_attr.sq_sig_all
            ibv_qp_cap.max_send_wr ibv_qp_cap.max_recv_wr ibv_qp_cap.max_send_sge
            ibv_qp_cap.max_recv_sge ibv_qp_cap.max_inline_data ibv_global_route.dgid
            ibv_global_route.sgid_index ibv_global_route.hop_limit
            ibv_global_route.traffic_class ibv_ah_attr.grh ibv_ah_attr.is_global
            ibv_ah_attr.port_num ibv_qp_attr.qp_state ibv_qp_attr.path_mtu ibv_qp_attr.rq_psn
            ibv_qp_attr.sq_psn ibv_qp_attr.dest_qp_num ibv_qp_attr.qp_access_flags
            ibv_qp_attr.ah_attr ibv_qp_attr.pkey_index ibv_qp_attr.max_rd_atomic
            ibv_qp_attr.max_dest_rd_atomic ibv_qp_attr.min_rnr_timer ibv_qp_attr.port_num
            ibv_qp_attr.timeout ibv_qp_attr.retry_cnt ibv_qp_attr.rnr_retry ibv_sge.addr
            ibv_sge.length ibv_sge.lkey ibv_send_wr.wr_id ibv_send_wr.next ibv_send_wr.sg_list
            ibv_send_wr.num_sge ibv_send_wr.opcode ibv_send_wr.send_flags ibv_send_wr.imm_data
            ibv_recv_wr.wr_id ibv_recv_wr.next ibv_recv_wr.sg_list ibv_recv_wr.num_sge
            ibv_wc.wr_id ibv_wc.status ibv_wc.byte_len;
        constants: IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QP_STATE IBV_QP_ACCESS_FLAGS
            IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT
            IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC
            IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_DEST_QPN
            IBV_QPT_RC IBV_WR_SEND IBV_SEND_SIGNALED IBV_ACCESS_LOCAL_WRITE
            IBV_GID_TYPE_ROCE_V2 IBV_WC_SUCCESS IBV_WC_WR_FLUSH_ERR;
    }
}

#[test]
fn structures_and_constants_are_those_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let program = folder.path().join("layout");
    let values = values();
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in &values {
        writeln!(
            text,
            "printf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .unwrap();
    }
    text += "return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    let header = "#include <infiniband/verbs.h>\n";
    let probe = folder.path().join("probe.c");
    std::fs::write(&probe, header).unwrap();
    let has_header = Command::new("cc").arg("-fsyntax-only").arg(&probe).output();
    if !has_header.unwrap().status.success() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no infiniband/verbs.h (libibverbs-dev)"
        );
        return;
    }
    let mut compiler = Command::new("cc");
    let compiled = compiler
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let said = Command::new(&program).output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let found: Vec<u64> = said.lines().map(|it| it.parse().unwrap()).collect();
    assert_eq!(found.len(), values.len());
    for ((expression, ours), theirs) in values.iter().zip(found) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
