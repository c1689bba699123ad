-- The scripts run inside Redis: these names are its own.
std = "lua51"
read_globals = {"KEYS", "ARGV", "redis", "cmsgpack", "cjson", "struct", "bit"}
max_line_length = 120
max_comment_line_length = false
-- The shared parts stand in each script as a whole; few scripts need all of their functions.
ignore = {
  "211/raw", "211/add", "211/note", "211/publish", "211/next_token", "211/takes_entries", "211/remove_all",
  "211/commit", "211/delete_committed", "211/put", "211/reader", "211/BACKEND", "211/LINE", "211/BYTES", "211/ENDING", "211/ATTEMPTS",
  "211/DEATHS", "211/RELEASES", "211/DEADLINE", "211/LOGGED", "211/STATE", "211/PAUSE", "211/parks", "211/forget_log", "211/CARRY", "211/TRAJECTORY",
}
