// SPDX-License-Identifier: Apache-2.0
//
// Tables of the pool: slots, tags of the ring of results, notes of contributions sent to the PS,
// and each job's progress. Receives admitted frames in order, decides the operation on each frame's
// payload, and updates the tables.
//
// Three stages:
//   read    reads the frame's entries, unless an earlier frame may still change one of them
//   look    compares the entries with the frame
//   decide  applies the table of PROTOCOL.md (tally_decide), writes the entries, and issues the
//           operation for the payload stage
//
// A frame enters `decide` only if no DATA or RESULT was there in the cycle before, since those move
// the values that `look` compares with. So DATA and results take 2 cycles, other types 1. Frames of
// one slot or one fragment take 3. DATA and RESULT have 2 beats and more, so the payload stage does
// not lose a cycle.
//
// Operations leave 3 cycles after `decide`. tally_missing needs this time to find the rank that a
// PROBE asks.
//
// A preemption changes the victim's note, whose row is known only from the victim's entry. The note
// is read while the frame is in `decide`, when no other entry is read, and written in the next
// cycle (`amend`), in which no other frame is decided. So it costs no cycle. If the next frame's
// own note is that note and is read in the cycle of `amend`, the frame gets the written value. If
// it was read before, the frame stays in `look` for one cycle more.
//
// Invariant: a slot is occupied from the frame that allocates it to the frame that frees it. Its
// bitmap is that of the contributions in its payload memory (tally_slots_check).

`default_nettype none

module tally_slots #(
    parameter int SLOTS = 1024,
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    parameter int RING = 512,
    parameter int F32 = 1,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int SLOT_BITS = $clog2(SLOTS),
    localparam int RING_BITS = $clog2(RING),
    localparam int ROW_BITS = PLACE_BITS + RING_BITS, // a row of ring and notes: {place, fragment}
    localparam int HEAD_BITS = tally_pkg::HEAD_FIXED_BITS + MEMBERS + PLACE_BITS
) (
    input  wire logic                    clk,
    input  wire logic                    rst,
    // The table of jobs, and its commands.
    input  wire logic [8*JOBS-1:0]       job_units,
    input  wire logic [MEMBERS*JOBS-1:0] job_all,
    input  wire logic                    walk, // clear the entries of a place, or all entries
    input  wire logic                    walk_all,
    input  wire logic [PLACE_BITS-1:0]   walk_place,
    output logic                         walked,
    output logic                         idle,
    // Frames.
    input  wire logic                    in_valid,
    output logic                         in_pop,
    input  wire logic [2:0]              in_act,
    input  wire logic [15:0]             in_bytes,
    input  wire logic [15:0]             in_port,
    input  wire logic [7:0]              in_flags,
    input  wire logic [7:0]              in_priority,
    input  wire logic [2:0]              in_element,
    input  wire logic [31:0]             in_fragment,
    input  wire logic [7:0]              in_rank,
    input  wire logic [7:0]              in_units,
    input  wire logic [PLACE_BITS-1:0]   in_place,
    input  wire logic [SLOT_BITS-1:0]    in_slot,
    // Operations for the payload stage.
    input  wire logic                    op_room, // space for 8 of them
    output logic                         op_valid,
    output logic                         op_takes, // 0: a frame's second operation, takes no beats
    output logic      [7:0]              op_beats, // of that frame
    output logic      [2:0]              op_from, // source of the output's payload
    output logic      [1:0]              op_write, // data written to the slot
    output logic                         op_keep, // write the output's payload to the ring
    output logic      [SLOT_BITS-1:0]    op_slot,
    output logic      [ROW_BITS-1:0]     op_row,
    output logic      [2:0]              op_element,
    output logic      [7:0]              op_units, // of the arrival, if it has elements
    output logic      [HEAD_BITS-1:0]    op_head, // for the egress; layout: tally_pkg
    // Counters.
    output logic      [tally_regs_pkg::COUNTERS-1:0] counts
);

  localparam int SLOT_WIDTH = 1 + PLACE_BITS + 32 + MEMBERS + 8 + 3 + 3 + 1;
  localparam int TAG_WIDTH = 1 + 32 + 8 + 8 + 3;
  localparam int NOTE_WIDTH = 32 + MEMBERS;

  // ---- Memories.
  logic read, slot_write, tag_write, note_read, note_write;
  logic [SLOT_BITS-1:0] slot_read_at, slot_write_at;
  logic [ROW_BITS-1:0] tag_write_at, note_read_at, note_write_at;
  logic [SLOT_WIDTH-1:0] slot_read_data, slot_write_data;
  logic [TAG_WIDTH-1:0] tag_read_data, tag_write_data;
  logic [NOTE_WIDTH-1:0] note_read_data, note_write_data;
  logic [ROW_BITS-1:0] tag_read_at;

  tally_ram #(.WIDTH(SLOT_WIDTH), .DEPTH(SLOTS)) slots (
      .clk, .read, .read_at(slot_read_at), .read_data(slot_read_data),
      .write(slot_write), .write_at(slot_write_at), .write_data(slot_write_data)
  );
  tally_ram #(.WIDTH(TAG_WIDTH), .DEPTH(1 << ROW_BITS)) tags (
      .clk, .read, .read_at(tag_read_at), .read_data(tag_read_data),
      .write(tag_write), .write_at(tag_write_at), .write_data(tag_write_data)
  );
  tally_ram #(.WIDTH(NOTE_WIDTH), .DEPTH(1 << ROW_BITS)) notes (
      .clk, .read(note_read), .read_at(note_read_at), .read_data(note_read_data),
      .write(note_write), .write_at(note_write_at), .write_data(note_write_data)
  );

  // Progress of a job: the newest fragment with DATA or a RESULT, and the newest with a result.
  logic [JOBS-1:0] has_reached, has_result;
  logic [31:0] reached[0:JOBS-1];
  logic [31:0] newest[0:JOBS-1];

  // Whether fragment `a` is ahead of `b` by `distance`, a power of two, or more, in serial
  // arithmetic (RFC 1982).
  function automatic logic is_ahead_by(input logic [31:0] a, input logic [31:0] b, input logic [31:0] distance);
    logic [31:0] ahead_by;
    ahead_by = a - b;
    is_ahead_by = !ahead_by[31] && ahead_by >= distance;
  endfunction

  // ---- Stage `read`.
  logic look_valid, look_leaves;
  logic decide_valid;
  logic decide_moves; // DATA or a RESULT is in `decide`
  logic [SLOT_BITS-1:0] look_slot, decide_slot;
  logic [ROW_BITS-1:0] look_row, decide_row;
  logic [ROW_BITS-1:0] victim_row;
  logic walking;
  logic amend; // the cycle after a preemption, which writes the victim's note

  wire [ROW_BITS-1:0] in_row = {in_place, in_fragment[RING_BITS-1:0]};
  logic look_uses, decide_uses; // uses the tables; only such frames wait for one another
  wire in_uses = in_act == tally_pkg::ACT_DATA || in_act == tally_pkg::ACT_PS_RESULT || in_act == tally_pkg::ACT_WORKER_RESULT
      || in_act == tally_pkg::ACT_REMIND || in_act == tally_pkg::ACT_PROBE;
  wire in_waits = in_uses && ((look_uses && (look_slot == in_slot || look_row == in_row))
      || (decide_uses && (decide_slot == in_slot || decide_row == in_row)));

  assign in_pop = in_valid && !in_waits && op_room && !walking && !decide_moves
      && (!look_valid || look_leaves);

  assign read = in_pop || walking;
  assign tag_read_at = in_row;

  // ---- Stage `look`.
  logic [2:0] look_act, look_element;
  logic [15:0] look_bytes, look_port;
  logic [7:0] look_flags, look_priority, look_rank, look_units, look_job_units;
  logic [31:0] look_fragment;
  logic [PLACE_BITS-1:0] look_place;
  // The bit of the contributing rank, the bits of all ranks below it, and of all ranks of the job.
  logic [MEMBERS-1:0] look_bit, look_before, look_all;

  wire sl_occupied, sl_split;
  wire [2:0] sl_flags; // COLLISION, MARKED and OVERFLOW of its contributions (TR-7)
  wire [PLACE_BITS-1:0] sl_place;
  wire [31:0] sl_fragment;
  wire [MEMBERS-1:0] sl_bitmap;
  wire [7:0] sl_priority;
  wire [2:0] sl_element;
  assign {sl_occupied, sl_place, sl_fragment, sl_bitmap, sl_priority, sl_element, sl_flags, sl_split} = slot_read_data;

  wire tg_used;
  wire [31:0] tg_fragment;
  wire [7:0] tg_flags, tg_priority;
  wire [2:0] tg_element;
  assign {tg_used, tg_fragment, tg_flags, tg_priority, tg_element} = tag_read_data;

  // The note is kept here, not in the memory's output, if it was written in the cycle of its read,
  // or if a victim's note has been read since.
  logic note_kept;
  logic [NOTE_WIDTH-1:0] kept_note, amended_note;
  wire [31:0] nt_fragment;
  wire [MEMBERS-1:0] nt_ranks;
  assign {nt_fragment, nt_ranks} = note_kept ? kept_note : note_read_data;

  assign look_leaves = look_valid && !decide_moves && !(amend && victim_row == look_row);

  always_ff @(posedge clk) begin
    note_kept <= in_pop ? amend && victim_row == in_row : look_valid && !look_leaves;
    // If both rows are the victim's, the frame in `look` stays, and no other frame is read.
    kept_note <= amend && (victim_row == in_row || victim_row == look_row) ? amended_note : {nt_fragment, nt_ranks};
  end

  always_ff @(posedge clk) begin
    if (in_pop) begin
      look_act <= in_act;
      look_bytes <= in_bytes;
      look_port <= in_port;
      look_flags <= in_flags;
      look_priority <= in_priority;
      look_element <= in_element;
      look_fragment <= in_fragment;
      look_rank <= in_rank;
      look_units <= in_units;
      look_place <= in_place;
      look_slot <= in_slot;
      look_row <= in_row;
      look_job_units <= job_units[8*in_place+:8];
      look_all <= job_all[MEMBERS*in_place+:MEMBERS];
      for (int i = 0; i < MEMBERS; i++) begin
        look_bit[i] <= 32'(in_rank) == i && in_act != tally_pkg::ACT_PROBE;
        look_before[i] <= 32'(in_rank) > i;
      end
    end
    look_valid <= in_pop || (look_valid && !look_leaves);
    look_uses <= in_pop ? in_uses : look_uses && !look_leaves;
    if (rst) {look_valid, look_uses} <= '0;
  end

  // Progress of the frame's job. No frame that moves it is in `decide` when a frame is read. A
  // frame in `decide` while another waits here moves this copy, too.
  logic look_has_reached, look_has_result;
  logic [31:0] look_reached, look_newest;

  always_ff @(posedge clk) begin
    if (in_pop) begin
      look_has_reached <= has_reached[in_place];
      look_has_result <= has_result[in_place];
      look_reached <= reached[in_place];
      look_newest <= newest[in_place];
    end else if (decide_valid && place == look_place) begin
      if (reaches && ahead) look_reached <= fragment;
      if (reaches) look_has_reached <= 1'b1;
      if (keeps && ahead_newest) look_newest <= fragment;
      if (keeps) look_has_result <= 1'b1;
    end
  end

  // The slot's job is known only now: compare with all places, then select one.
  logic [JOBS-1:0] are_past;
  always_comb for (int i = 0; i < JOBS; i++) are_past[i] = has_reached[i] && is_ahead_by(reached[i], sl_fragment, RING / 2);

  wire is_own = sl_place == look_place;
  wire [MEMBERS-1:0] look_with = sl_bitmap | look_bit;
  wire is_narrow = look_element >= tally_pkg::ELEMENT_F16 || (F32 == 0 && look_element == tally_pkg::ELEMENT_F32);
  wire is_ordered = is_narrow || look_element == tally_pkg::ELEMENT_F32;

  // ---- Stage `decide`.
  logic [2:0] act, element, s_element, t_element;
  logic [15:0] bytes, port;
  logic [7:0] flags, priority_, rank, units, own_units, s_priority, s_units, t_flags, t_priority;
  logic [31:0] fragment, s_fragment;
  logic [PLACE_BITS-1:0] place, s_place;
  logic [MEMBERS-1:0] bit_, below, all, with_, s_bitmap, noted_ranks, note_of_victim;
  logic [2:0] s_flags;
  logic s_split, s_occupied;
  logic finished, old, hit, seen, same_element, is_next, is_first, completes, higher, same_note, ahead,
      ahead_newest, has_note, are_rest, are_rest_alone, own_slot, past_arrival;
  logic [JOBS-1:0] past_places;

  always_ff @(posedge clk) begin
    decide_valid <= look_leaves && !rst;
    decide_uses <= look_leaves && !rst && look_uses;
    decide_moves <= look_leaves && !rst && (look_act == tally_pkg::ACT_DATA || look_act == tally_pkg::ACT_PS_RESULT
        || look_act == tally_pkg::ACT_WORKER_RESULT);
    decide_slot <= look_slot;
    decide_row <= look_row;
    act <= look_act;
    bytes <= look_bytes;
    port <= look_port;
    flags <= look_flags;
    priority_ <= look_priority;
    element <= look_element;
    fragment <= look_fragment;
    rank <= look_rank;
    units <= look_units;
    own_units <= look_job_units;
    place <= look_place;
    bit_ <= look_bit;
    below <= look_before;
    all <= look_all;
    with_ <= look_with;
    noted_ranks <= nt_ranks;
    has_note <= nt_fragment == look_fragment;
    s_occupied <= sl_occupied;
    s_place <= sl_place;
    s_fragment <= sl_fragment;
    s_bitmap <= sl_bitmap;
    s_priority <= sl_priority;
    s_element <= sl_element;
    s_flags <= sl_flags;
    s_split <= sl_split;
    s_units <= job_units[8*sl_place+:8];
    note_of_victim <= nt_fragment == sl_fragment ? nt_ranks : '0;
    t_flags <= tg_flags;
    t_priority <= tg_priority;
    t_element <= tg_element;

    finished <= tg_used && tg_fragment == look_fragment;
    old <= look_has_result && is_ahead_by(look_newest, look_fragment, RING);
    ahead <= !look_has_reached || is_ahead_by(look_fragment, look_reached, 1);
    ahead_newest <= !look_has_result || is_ahead_by(look_fragment, look_newest, 1);
    own_slot <= is_own;
    past_places <= are_past;
    past_arrival <= is_ahead_by(look_fragment, sl_fragment, RING / 2);
    hit <= sl_occupied && is_own && sl_fragment == look_fragment;
    seen <= |(sl_bitmap & look_bit);
    same_element <= sl_element == look_element;
    // An ordered sum holds ranks 0 to k-1, and k is next. A sub-32-bit sum holds rank 0 alone, and
    // no rank is next.
    is_next <= !is_ordered || (!is_narrow && sl_bitmap == look_before);
    is_first <= !is_ordered || look_rank == 0;
    completes <= look_with == look_all;
    are_rest <= (look_with | nt_ranks) == look_all;
    are_rest_alone <= (look_bit | nt_ranks) == look_all;
    higher <= look_priority > sl_priority;
    same_note <= is_own && sl_fragment[RING_BITS-1:0] == look_fragment[RING_BITS-1:0];
  end

  // The note, if it is this fragment's.
  wire [MEMBERS-1:0] ranks = has_note ? noted_ranks : '0;
  wire noted = |(ranks & bit_);
  wire any_noted = |ranks;
  wire is_rest = has_note ? are_rest : completes;
  wire is_rest_alone = has_note && are_rest_alone;
  // This fragment is the newest of the slot's job, if it is ahead of all earlier ones.
  wire past = own_slot && ahead ? past_arrival : past_places[s_place];

  logic reaches, joins, takes, frees, halves, raises, splits, split_taken, notes_rank, notes_slot, notes_victim, keeps, evicts_too;
  logic [2:0] from;
  logic [3:0] head;
  logic [7:0] why;
  logic [1:0] write;
  logic results, results_from_ps, results_from_workers, results_again, preemptions, abandoned, followed, collisions, resends_to_ps, held_full,
      slots_taken, reminds, nacks, probes, probe_nacks, late, duplicate, mismatch;

  tally_decide decide (
      .valid(decide_valid), .act, .resend(flags[tally_pkg::FLAG_RESEND_BIT]), .finished, .old, .noted, .any_noted,
      .occupied(s_occupied), .hit, .seen, .split(s_split), .same_element, .is_next, .is_first, .completes, .is_rest,
      .is_rest_alone, .past, .higher, .same_note, .reaches, .joins, .takes, .frees, .halves, .raises, .splits, .split_taken,
      .notes_rank, .notes_slot, .notes_victim, .keeps, .from, .head, .evicts_too, .why, .write, .results,
      .results_from_ps, .results_from_workers, .results_again, .preemptions, .abandoned, .followed, .collisions, .resends_to_ps, .held_full,
      .slots_taken, .reminds, .nacks, .probes, .probe_nacks, .late, .duplicate, .mismatch
  );

  wire [7:0] priority_max = raises && priority_ > s_priority ? priority_ : s_priority;
  wire [2:0] flags_of_sum =
      {flags[tally_pkg::FLAG_COLLISION_BIT], flags[tally_pkg::FLAG_MARKED_BIT], flags[tally_pkg::FLAG_OVERFLOW_BIT]};

  // The slot's new entry.
  wire stays = takes || (!frees && (halves || raises));
  wire [SLOT_WIDTH-1:0] slot_next = !stays ? '0
      : takes ? {1'b1, place, fragment, bit_, priority_, element, flags_of_sum, split_taken}
      : {1'b1, s_place, s_fragment, joins ? with_ : s_bitmap, halves ? s_priority >> 1 : priority_max, s_element,
         s_flags | (joins ? flags_of_sum : 3'd0), s_split || splits};

  // The fragment's note, or the victim's if both have the same row.
  wire amends_here = notes_victim && same_note;
  wire [MEMBERS-1:0] ranks_added = (notes_rank ? bit_ : '0) | (notes_slot ? s_bitmap : '0);
  wire [NOTE_WIDTH-1:0] note_next = amends_here ? notes_rank ? {fragment, bit_} : {s_fragment, note_of_victim | s_bitmap}
      : {fragment, ranks | ranks_added};
  wire needs_amend = notes_victim && !same_note;

  // ---- The victim's note: read in `decide`, written in the next cycle.
  wire [ROW_BITS-1:0] occupant_row = {s_place, s_fragment[RING_BITS-1:0]};
  logic [31:0] victim_fragment;
  logic [MEMBERS-1:0] victim_bitmap;

  always_ff @(posedge clk) begin
    amend <= needs_amend && !rst;
    victim_row <= occupant_row;
    victim_fragment <= s_fragment;
    victim_bitmap <= s_bitmap;
  end

  wire [31:0] vn_fragment;
  wire [MEMBERS-1:0] vn_ranks;
  assign {vn_fragment, vn_ranks} = note_read_data;
  assign amended_note = {victim_fragment, (vn_fragment == victim_fragment ? vn_ranks : '0) | victim_bitmap};

  assign note_read = in_pop || decide_moves;
  assign note_read_at = decide_moves ? occupant_row : in_row;

  // ---- Walk of the tables.
  localparam int ROWS = 1 << ROW_BITS;
  localparam int STEPS = SLOTS > ROWS ? SLOTS : ROWS;
  localparam int STEP_BITS = $clog2(STEPS);
  logic [STEP_BITS:0] step;
  logic [SLOT_BITS-1:0] stepped_slot; // read in the previous cycle
  logic stepped;

  wire [STEP_BITS-1:0] last_step = STEP_BITS'((walk_all ? STEPS : SLOTS > RING ? SLOTS : RING) - 1);
  wire [ROW_BITS-1:0] step_row = walk_all ? ROW_BITS'(step) : {walk_place, RING_BITS'(step)};
  wire is_row = 32'(step) < (walk_all ? ROWS : RING);

  always_ff @(posedge clk) begin
    walked <= 1'b0;
    stepped <= walking && 32'(step) < SLOTS;
    stepped_slot <= SLOT_BITS'(step);
    step <= step + 1'b1;
    if (walk) begin
      walking <= 1'b1;
      step <= '0;
    end else if (walking && step[STEP_BITS-1:0] == last_step) begin
      walking <= 1'b0;
      walked <= 1'b1;
    end
    if (rst) {walking, walked, stepped} <= '0;
  end

  assign slot_read_at = walking ? SLOT_BITS'(step) : in_slot;

  always_comb begin
    slot_write = decide_valid && (takes || frees || halves || raises);
    slot_write_at = decide_slot;
    slot_write_data = slot_next;
    if (stepped) begin
      slot_write = walk_all || sl_place == walk_place;
      slot_write_at = stepped_slot;
      slot_write_data = '0;
    end

    tag_write = keeps;
    tag_write_at = decide_row;
    tag_write_data = {1'b1, fragment, head_flags, head_priority, head_element};
    note_write = notes_rank || notes_slot || amends_here;
    note_write_at = decide_row;
    note_write_data = note_next;
    if (amend) begin
      note_write = 1'b1;
      note_write_at = victim_row;
      note_write_data = amended_note;
    end
    if (walking && is_row) begin
      tag_write = 1'b1;
      tag_write_at = step_row;
      tag_write_data = '0;
      note_write = 1'b1;
      note_write_at = step_row;
      note_write_data = '0;
    end
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < JOBS; i++) begin
      if (32'(place) == i && decide_valid) begin
        if (reaches && ahead) reached[i] <= fragment;
        if (reaches) has_reached[i] <= 1'b1;
        if (keeps && ahead_newest) newest[i] <= fragment;
        if (keeps) has_result[i] <= 1'b1;
      end
      if (walk && (walk_all || 32'(walk_place) == i)) begin
        has_reached[i] <= 1'b0;
        has_result[i] <= 1'b0;
      end
    end
    if (rst) {has_reached, has_result} <= '0;
  end

  // ---- Operations for the payload stage.
  logic [HEAD_BITS-1:0] out_head, evict_head;
  logic [7:0] head_flags, head_priority;
  logic [2:0] head_element;

  tally_heads #(.JOBS(JOBS), .MEMBERS(MEMBERS)) heads (
      .head, .why, .is_raw(from == tally_pkg::FROM_RAW), .evicts_too, .bytes, .port, .flags, .priority_, .element, .place,
      .fragment, .rank, .units, .job_units(own_units), .bit_, .s_priority(priority_max), .s_element, .s_place, .s_fragment, .s_units, .s_bitmap,
      .s_flags({2'b00, s_flags[2:1], 2'b00, s_flags[0], 1'b0}), .t_flags, .t_priority, .t_element, .out_head, .out_flags(head_flags), .out_priority(head_priority),
      .out_element(head_element), .evict_head
  );

  // The rank that a PROBE asks is known two stages later.
  localparam int ORDER_BITS = 1 + 8 + 3 + 2 + 1 + SLOT_BITS + ROW_BITS + 3 + 8 + HEAD_BITS;
  logic valid1, valid2, asks1, asks2; // a NACK to the rank of tally_missing
  logic takes1, keep1;
  logic [7:0] beats1, units1, missing;
  logic [2:0] from1, element1;
  logic [1:0] write1;
  logic [SLOT_BITS-1:0] slot1;
  logic [ROW_BITS-1:0] row1;
  logic [HEAD_BITS-1:0] head1;
  logic [ORDER_BITS-1:0] order2;
  logic second; // the slot leaves, too, after the previous operation
  logic [HEAD_BITS-1:0] second_head;

  tally_missing #(.MEMBERS(MEMBERS)) asked (.clk, .all, .slot(hit ? s_bitmap : '0), .noted(ranks), .below, .rank(missing));

  always_ff @(posedge clk) begin
    valid1 <= decide_valid || second;
    asks1 <= decide_valid && head == tally_pkg::HEAD_ASK;
    takes1 <= decide_valid;
    beats1 <= bytes[13:6] + 8'(bytes[5:0] != 0);
    from1 <= second ? tally_pkg::FROM_SLOT : from;
    write1 <= second ? tally_pkg::WRITE_NOTHING : write;
    keep1 <= keeps;
    slot1 <= second ? slot1 : decide_slot;
    row1 <= decide_row;
    element1 <= second ? tally_pkg::ELEMENT_NONE : element;
    units1 <= second ? 8'd0 : units;
    head1 <= second ? second_head : out_head;
    second <= evicts_too;
    second_head <= evict_head;

    valid2 <= valid1;
    asks2 <= asks1;
    order2 <= {takes1, beats1, from1, write1, keep1, slot1, row1, element1, units1, head1};

    op_valid <= valid2;
    {op_takes, op_beats, op_from, op_write, op_keep, op_slot, op_row, op_element, op_units, op_head} <= order2;
    if (asks2) begin
      op_head[tally_pkg::HEAD_ASKER_AT+:tally_pkg::HEAD_ASKER_BITS] <= missing;
      op_head[tally_pkg::HEAD_RANK_AT+:tally_pkg::HEAD_RANK_BITS] <= missing;
    end
    if (rst) {valid1, valid2, op_valid, second} <= '0;
  end

`ifndef SYNTHESIS
  tally_slots_check #(.SLOTS(SLOTS), .MEMBERS(MEMBERS)) check (
      .clk, .rst, .valid(decide_uses), .slot(decide_slot), .occupied(s_occupied), .hit, .bitmap(s_bitmap), .joins, .takes, .frees,
      .stays, .clears(stepped && slot_write), .clears_slot(stepped_slot), .cleared_all(walked && walk_all)
  );
`endif

  assign idle = !in_valid && !look_valid && !decide_valid && !second && !valid1 && !valid2 && !op_valid && !amend && !walking && !stepped;

  always_comb begin
    counts = '0;
    counts[tally_regs_pkg::COUNT_CONTRIBUTIONS] = joins;
    counts[tally_regs_pkg::COUNT_SLOTS_TAKEN] = slots_taken;
    counts[tally_regs_pkg::COUNT_RESULTS] = results;
    counts[tally_regs_pkg::COUNT_RESULTS_FROM_PS] = results_from_ps;
    counts[tally_regs_pkg::COUNT_RESULTS_FROM_WORKERS] = results_from_workers;
    counts[tally_regs_pkg::COUNT_RESULTS_AGAIN] = results_again;
    counts[tally_regs_pkg::COUNT_PREEMPTIONS] = preemptions;
    counts[tally_regs_pkg::COUNT_ABANDONED] = abandoned;
    counts[tally_regs_pkg::COUNT_FOLLOWED] = followed;
    counts[tally_regs_pkg::COUNT_COLLISIONS] = collisions;
    counts[tally_regs_pkg::COUNT_RESENDS_TO_PS] = resends_to_ps;
    counts[tally_regs_pkg::COUNT_HELD_FULL] = held_full;
    counts[tally_regs_pkg::COUNT_REMINDS] = reminds;
    counts[tally_regs_pkg::COUNT_NACKS] = nacks;
    counts[tally_regs_pkg::COUNT_PROBES] = probes;
    counts[tally_regs_pkg::COUNT_PROBE_NACKS] = probe_nacks;
    counts[tally_regs_pkg::DROP_LATE] = late;
    counts[tally_regs_pkg::DROP_DUPLICATE] = duplicate;
    counts[tally_regs_pkg::DROP_ELEMENT_MISMATCH] = mismatch;
  end

endmodule

`default_nettype wire
