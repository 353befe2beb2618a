-- Replays the captures at one rate for a limited time: a load under which to observe the switch.

FOLDER = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local tally = dofile(FOLDER .. "tally.lua")

tally.run(function()
    local trial = tally.trial(tally.settings.replay_percent, tally.settings.replay_seconds)
    tally.write("replay.json", { trial }, trial.is_good and trial or nil)
end)
