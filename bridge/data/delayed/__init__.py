"""Delayed and recurring messages on the log and in wire forms; `duolog.delay` decides, and knows neither.

delay_headers    what a message asks for          pending_frames    wire forms while it is pending
delays           appends, pauses, runs            delivery_frames   wire forms when it is delivered
deliveries       delivers what is due             delay_commands    view, cancel, reschedule
schedules        recurring messages               delay_records     state records: replay and snapshot
text_ids         ids as clients get them
"""
